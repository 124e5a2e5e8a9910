//! API keys: who may ask for work.
//!
//! Keys are kept and compared as digests, every one of them with every request and without a branch on what differs, so that
//! the time of a refusal tells nothing about a key.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::config::ServerConfig;
use crate::errors::{ApiError, Kind};
use crate::http::listener::BindError;

/// A key file is a list, not a book.
const LARGEST_FILE: u64 = 1 << 20;

type Digested = [u8; 32];

/// A key file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("--api-key-file {path}: {problem}")]
pub struct KeyFileError {
    path: PathBuf,
    problem: String,
}

/// The keys of now.
#[derive(Debug)]
pub(crate) struct Keys {
    given: Vec<Digested>,
    file: Option<PathBuf>,
    per_key: usize,
    known: RwLock<Vec<Key>>,
}

#[derive(Clone, Debug)]
struct Key {
    digest: Digested,
    places: Arc<Semaphore>,
}

impl Keys {
    pub(crate) fn new(config: &ServerConfig) -> Result<Self, BindError> {
        for (at, key) in config.api_keys.iter().enumerate() {
            check_key(key).map_err(|fault| {
                let problem = format!("key {} of {} {fault}", at + 1, config.api_keys.len());
                BindError::Flag { flag: "--api-key", problem }
            })?;
        }
        let keys = Keys {
            given: config.api_keys.iter().map(|key| digest(key.as_bytes())).collect(),
            file: config.api_key_file.clone(),
            per_key: config
                .requests_per_key
                .unwrap_or(Semaphore::MAX_PERMITS)
                .clamp(1, Semaphore::MAX_PERMITS),
            known: RwLock::default(),
        };
        if config.requests_per_key.is_some() && keys.is_open() {
            let problem =
                "there is no key whose requests could be counted: set --api-key or --api-key-file as well";
            return Err(BindError::Flag { flag: "--requests-per-key", problem: problem.into() });
        }
        keys.reread()?;
        Ok(keys)
    }

    /// Reads the file again. Keys that stay keep their running requests; if the file cannot be used, all stays as it is.
    pub(crate) fn reread(&self) -> Result<usize, KeyFileError> {
        let mut digests = self.given.clone();
        if let Some(file) = &self.file {
            digests.extend(read(file)?);
        }
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let mut next: Vec<Key> = Vec::with_capacity(digests.len());
        for digest in digests {
            if next.iter().any(|key| key.digest == digest) {
                continue;
            }
            let before = known.iter().find(|key| key.digest == digest).cloned();
            next.push(
                before.unwrap_or_else(|| Key { digest, places: Arc::new(Semaphore::new(self.per_key)) }),
            );
        }
        *known = next;
        Ok(known.len())
    }

    /// No key is needed.
    pub(crate) fn is_open(&self) -> bool {
        self.given.is_empty() && self.file.is_none()
    }

    /// The file that can be read again.
    pub(crate) fn has_file(&self) -> bool {
        self.file.is_some()
    }

    /// The key of a request, which is good if it is one of ours.
    pub(crate) fn check(&self, headers: &HeaderMap) -> Result<KeyUse, ApiError> {
        if self.is_open() {
            return Ok(KeyUse(None));
        }
        let refused = |message: &str| Err(Kind::Unauthorized.error(message));
        let Some(given) = given(headers) else {
            return refused(
                "this server needs an API key: send it as `Authorization: Bearer KEY` or `X-Api-Key: KEY`",
            );
        };
        let given = digest(given);
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let mut found = None;
        for key in known.iter() {
            let same: Choice = key.digest.ct_eq(&given);
            if bool::from(same) {
                found = Some(key.clone());
            }
        }
        match found {
            Some(key) => Ok(KeyUse(Some(key.places))),
            None => refused("this API key is not one of this server's"),
        }
    }
}

/// A good key, or none where none is needed.
#[derive(Debug)]
pub(crate) struct KeyUse(Option<Arc<Semaphore>>);

impl KeyUse {
    /// A place among the requests of this key.
    pub(crate) fn begin(self) -> Result<Option<OwnedSemaphorePermit>, ApiError> {
        let Some(places) = self.0 else { return Ok(None) };
        places.try_acquire_owned().map(Some).map_err(|_| {
            let message =
                "this API key has as many requests running as it may have; try again when one has ended";
            Kind::KeyBusy.error(message).retry_after(1)
        })
    }
}

/// What makes a text no key, in words that do not show it. A key that no header can bring would lock everyone out.
fn check_key(key: &str) -> Result<(), &'static str> {
    if key.is_empty() {
        return Err("is empty; wanted at least one character");
    }
    if !key.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(
            "has a blank in it, or a character that is not ASCII; wanted letters, digits and signs alone",
        );
    }
    Ok(())
}

fn digest(key: &[u8]) -> Digested {
    Sha256::digest(key).into()
}

fn given(headers: &HeaderMap) -> Option<&[u8]> {
    let bearer = headers.get(AUTHORIZATION).and_then(|value| {
        let (scheme, key) = value.as_bytes().split_at_checked("Bearer ".len())?;
        scheme.eq_ignore_ascii_case(b"Bearer ").then(|| key.trim_ascii())
    });
    bearer
        .or_else(|| headers.get("x-api-key").map(|value| value.as_bytes().trim_ascii()))
        .filter(|key| !key.is_empty())
}

/// A key on each line, blanks around it aside; empty lines and lines that begin with # are none.
fn read(path: &Path) -> Result<Vec<Digested>, KeyFileError> {
    let fault = |problem: String| KeyFileError { path: path.to_owned(), problem };
    let about = std::fs::metadata(path).map_err(|error| fault(error.to_string()))?;
    if !about.is_file() || about.len() > LARGEST_FILE {
        return Err(fault(format!(
            "this is not a file of at most {LARGEST_FILE} bytes, which a list of keys is"
        )));
    }
    let text = std::fs::read_to_string(path).map_err(|error| fault(error.to_string()))?;
    // Some Windows programs begin every text with a byte order mark.
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let mut keys = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let key = line.trim();
        if key.is_empty() || key.starts_with('#') {
            continue;
        }
        check_key(key).map_err(|problem| fault(format!("line {} {problem}", at + 1)))?;
        keys.push(digest(key.as_bytes()));
    }
    if keys.is_empty() {
        return Err(fault("there is no key in it; wanted one on each line".into()));
    }
    Ok(keys)
}
