//! What all connections share: the configuration, the service once it is ready, and the bounds.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use tokio::sync::{Semaphore, watch};

use crate::config::ServerConfig;
use crate::errors::{ApiError, Kind};
use crate::http::body::BodyBudget;
use crate::http::cors::Origins;
use crate::http::host::HostRule;
use crate::http::keys::Keys;
use crate::http::tls::Tls;
use crate::service::Service;

/// Where the server is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Running,
    /// No new connections; running requests finish.
    Draining,
    /// Everything ends now.
    Stopped,
}

/// See the module.
pub(crate) struct Shared {
    pub(crate) config: ServerConfig,
    pub(crate) hosts: HostRule,
    pub(crate) keys: Keys,
    pub(crate) tls: Option<Arc<Tls>>,
    pub(crate) origins: Origins,
    pub(crate) bodies: BodyBudget,
    pub(crate) unknown: UnknownNames,
    pub(crate) phase: watch::Sender<Phase>,
    service: RwLock<Option<Arc<Service>>>,
    preparing: Arc<Semaphore>,
}

impl Shared {
    pub(crate) fn new(
        config: ServerConfig,
        hosts: HostRule,
        keys: Keys,
        origins: Origins,
        tls: Option<Arc<Tls>>,
    ) -> Self {
        Shared {
            hosts,
            keys,
            tls,
            origins,
            bodies: BodyBudget::new(config.max_bodies_bytes),
            unknown: UnknownNames::default(),
            phase: watch::Sender::new(Phase::Running),
            service: RwLock::new(None),
            preparing: Arc::new(Semaphore::new(config.max_preparing.clamp(1, Semaphore::MAX_PERMITS))),
            config,
        }
    }

    /// The service, or 503 while there is none.
    pub(crate) fn service(&self) -> Result<Arc<Service>, ApiError> {
        let service = self.service.read().unwrap_or_else(PoisonError::into_inner);
        service
            .clone()
            .ok_or_else(|| Kind::Loading.error("the model is loading; try again soon").retry_after(2))
    }

    pub(crate) fn set_service(&self, service: Arc<Service>) {
        *self.service.write().unwrap_or_else(PoisonError::into_inner) = Some(service);
    }

    /// Later phases only: nothing comes back from draining.
    pub(crate) fn advance(&self, phase: Phase) {
        self.phase.send_if_modified(|current| {
            let later = phase > *current;
            if later {
                *current = phase;
            }
            later
        });
    }

    /// Waits until the server is in this phase or a later one.
    pub(crate) async fn reached(&self, wanted: Phase) {
        // The sender lives in `self`, so the wait cannot fail.
        let _ = self.phase.subscribe().wait_for(|phase| *phase >= wanted).await;
    }

    /// Runs CPU work outside the async threads, a bounded number at a time. Work that began is finished even if nobody
    /// waits for it any more, and keeps its place until then.
    pub(crate) async fn prepare<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let internal =
            || Kind::Internal.error("the request could not be prepared; this is a fault of the server");
        let place = self.preparing.clone().acquire_owned().await.map_err(|_| internal())?;
        let work = move || {
            let _place = place;
            work()
        };
        tokio::task::spawn_blocking(work).await.map_err(|_| internal())
    }
}

/// Field names that were logged already.
#[derive(Default)]
pub(crate) struct UnknownNames(Mutex<HashSet<String>>);

impl UnknownNames {
    /// Names come from clients: neither their number nor their length may fill memory or log.
    const MOST: usize = 256;
    const LONGEST: usize = 64;

    /// Logs each name the first time it is seen.
    pub(crate) fn report(&self, names: &[String]) {
        if names.is_empty() {
            return;
        }
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for name in names {
            let short: String = name.chars().take(Self::LONGEST).collect();
            if seen.len() < Self::MOST && seen.insert(short.clone()) {
                tracing::info!("request field {short:?} is unknown here and has no effect");
            }
        }
    }

    #[cfg(test)]
    fn count(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_names_are_bounded() {
        let names = UnknownNames::default();
        let many: Vec<String> = (0..1000).map(|n| format!("field{n}")).collect();
        names.report(&many);
        names.report(&["x".repeat(1 << 20)]);
        assert_eq!(names.count(), UnknownNames::MOST);
    }
}
