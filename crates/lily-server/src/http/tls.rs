//! Encrypted connections: the certificate and its key, from files that may change while the server runs.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use rustls::ServerConfig;
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

/// A chain of certificates and a key are a few kilobytes.
const LARGEST_FILE: u64 = 1 << 20;

/// Where a server's certificate is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// PEM: the server's certificate first, then those that it was signed by.
    pub cert: PathBuf,
    /// PEM: the private key of the first.
    pub key: PathBuf,
}

/// A certificate or key that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{flag} {}: {problem}", path.display())]
pub struct TlsError {
    flag: &'static str,
    path: PathBuf,
    problem: String,
}

/// The certificate of now.
pub(crate) struct Tls {
    files: TlsFiles,
    acceptor: RwLock<TlsAcceptor>,
}

impl Tls {
    /// Reads both files.
    pub(crate) fn new(files: &TlsFiles) -> Result<Self, TlsError> {
        Ok(Tls { files: files.clone(), acceptor: RwLock::new(acceptor(files)?) })
    }

    /// Reads both files again; if they cannot be used, all stays as it is.
    pub(crate) fn reread(&self) -> Result<(), TlsError> {
        let new = acceptor(&self.files)?;
        *self.acceptor.write().unwrap_or_else(PoisonError::into_inner) = new;
        Ok(())
    }

    /// What takes the next connection.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        self.acceptor.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn acceptor(files: &TlsFiles) -> Result<TlsAcceptor, TlsError> {
    let (cert_flag, key_flag) = ("--tls-cert", "--tls-key");
    let pem = read(cert_flag, &files.cert)?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let certificates = certificates.map_err(|error| fault(cert_flag, &files.cert, error.to_string()))?;
    if certificates.is_empty() {
        let problem = "there is no certificate in it; wanted PEM text with BEGIN CERTIFICATE";
        return Err(fault(cert_flag, &files.cert, problem));
    }
    let pem = read(key_flag, &files.key)?;
    let key = PrivateKeyDer::from_pem_slice(&pem).map_err(|error| {
        let problem = match error {
            PemError::NoItemsFound => {
                "there is no private key in it; wanted PEM text with BEGIN PRIVATE KEY, not encrypted"
                    .to_owned()
            }
            error => error.to_string(),
        };
        fault(key_flag, &files.key, problem)
    })?;
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(certificates, key));
    let mut config = config.map_err(|error| {
        let cert = files.cert.display();
        fault(key_flag, &files.key, format!("it does not go with --tls-cert {cert}: {error}"))
    })?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn read(flag: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    let about = std::fs::metadata(path).map_err(|error| fault(flag, path, error.to_string()))?;
    if !about.is_file() || about.len() > LARGEST_FILE {
        return Err(fault(flag, path, format!("this is not a file of at most {LARGEST_FILE} bytes")));
    }
    std::fs::read(path).map_err(|error| fault(flag, path, error.to_string()))
}

fn fault(flag: &'static str, path: &Path, problem: impl Into<String>) -> TlsError {
    TlsError { flag, path: path.to_owned(), problem: problem.into() }
}
