//! A socket in the file system, for this user's programs alone.

use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tokio::net::{UnixListener, UnixStream};

use crate::http::door::SocketError;

/// A bound socket; its file goes with it.
pub(crate) struct UnixDoor {
    listener: UnixListener,
    path: PathBuf,
    /// Device and number of the file, so that nobody else's is removed.
    file: (u64, u64),
}

impl UnixDoor {
    /// Binds beside the path and moves the socket there once only this user can connect. A socket that nobody serves any more
    /// is replaced.
    pub(crate) fn bind(path: &Path) -> Result<Self, SocketError> {
        let fault = |problem: String| SocketError { path: path.to_owned(), problem };
        match std::fs::symlink_metadata(path) {
            Ok(found) if !found.file_type().is_socket() => {
                return Err(fault(
                    "there is something else than a socket; wanted a path that is free".into(),
                ));
            }
            Ok(_) if std::os::unix::net::UnixStream::connect(path).is_ok() => {
                return Err(fault("another program serves there; choose another path, or end it".into()));
            }
            _ => {}
        }
        let mut beside = path.as_os_str().to_owned();
        beside.push(format!(".{}", std::process::id()));
        let beside = PathBuf::from(beside);
        let bound = UnixListener::bind(&beside).and_then(|listener| {
            std::fs::set_permissions(&beside, std::fs::Permissions::from_mode(0o600))?;
            std::fs::rename(&beside, path)?;
            Ok((listener, identity(path)?))
        });
        match bound {
            Ok((listener, file)) => Ok(UnixDoor { listener, path: path.to_owned(), file }),
            Err(error) => {
                let _ = std::fs::remove_file(&beside);
                Err(fault(format!(
                    "cannot listen there: {error}; wanted a short path in a folder that can be written"
                )))
            }
        }
    }

    pub(crate) async fn accept(&self) -> io::Result<UnixStream> {
        Ok(self.listener.accept().await?.0)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for UnixDoor {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|file| file == self.file) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let about = std::fs::symlink_metadata(path)?;
    Ok((about.dev(), about.ino()))
}
