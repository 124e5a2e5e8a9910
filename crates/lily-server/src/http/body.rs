//! Reading a request body: the right type, within its limits of size and time.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use serde_json::{Map, Value};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::config::ServerConfig;
use crate::errors::{ApiError, Kind};
use crate::http::foreign::{ForeignWord, foreign_word};
use crate::http::surrogates;
use crate::service::Service;
use crate::shared::Shared;

/// Bytes of request bodies that may be held at one moment, counted in KiB.
#[derive(Debug)]
pub(crate) struct BodyBudget(Arc<Semaphore>);

/// A body in memory, and its share of the budget.
pub(crate) struct HeldBody {
    bytes: Bytes,
    _share: Option<OwnedSemaphorePermit>,
}

impl BodyBudget {
    pub(crate) fn new(bytes: usize) -> Self {
        BodyBudget(Arc::new(Semaphore::new((bytes / 1024).clamp(1, Semaphore::MAX_PERMITS))))
    }

    /// Grows a share to cover `bytes`; never waits, since two half-read bodies could wait for each other.
    fn cover(&self, share: &mut Option<OwnedSemaphorePermit>, bytes: usize) -> Result<(), ApiError> {
        let held = share.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let missing = bytes.div_ceil(1024).saturating_sub(held);
        if missing == 0 {
            return Ok(());
        }
        let missing = u32::try_from(missing).unwrap_or(u32::MAX);
        let more = self.0.clone().try_acquire_many_owned(missing).map_err(|_| {
            let message = "too many bytes of request bodies are being read at this moment; try again";
            Kind::Busy.error(message).retry_after(1)
        })?;
        match share {
            Some(share) => share.merge(more),
            None => *share = Some(more),
        }
        Ok(())
    }
}

/// `application/json`, whatever its parameters. Nothing else is taken: a page of another origin may post a form or plain
/// text without asking, but not JSON.
fn require_json(headers: &HeaderMap) -> Result<(), ApiError> {
    let found = headers.get(CONTENT_TYPE).map(|value| value.to_str().unwrap_or(""));
    let essence = found.unwrap_or("").split(';').next().unwrap_or("").trim();
    if essence.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    let message = match found {
        Some(found) => format!("Content-Type is {found:?}, and must be application/json"),
        None => "the Content-Type header is missing, and must be application/json".into(),
    };
    Err(Kind::MediaType.error(message))
}

/// Bodies are taken as they are: a compressed one would only be called bad JSON.
fn refuse_compression(headers: &HeaderMap) -> Result<(), ApiError> {
    for value in headers.get_all(CONTENT_ENCODING) {
        let found = value.to_str().unwrap_or("?");
        // The second says nothing about compression, but some clients send it.
        let plain =
            |name: &str| matches!(name.trim().to_ascii_lowercase().as_str(), "" | "identity" | "utf-8");
        if !found.split(',').all(plain) {
            let message = format!(
                "Content-Encoding is {found:?}, and bodies are taken uncompressed only: leave it out"
            );
            return Err(Kind::MediaType.error(message));
        }
    }
    Ok(())
}

/// The body of a request that has to be JSON.
async fn take(request: Request, shared: &Shared) -> Result<HeldBody, ApiError> {
    let (parts, body) = request.into_parts();
    require_json(&parts.headers)?;
    refuse_compression(&parts.headers)?;
    read(&parts.headers, body, &shared.bodies, &shared.config).await
}

/// What `work` makes of a request's JSON, outside the async threads, with the service that it is made for: while there is none, the
/// body is not read.
pub(crate) async fn prepare<T: Send + 'static>(
    request: Request,
    shared: &Shared,
    work: fn(Map<String, Value>, &Service) -> Result<T, ApiError>,
) -> Result<(Arc<Service>, T), ApiError> {
    let service = shared.service()?;
    let held = take(request, shared).await?;
    let made = {
        let service = service.clone();
        shared.prepare(move || work(held.parse()?, &service)).await??
    };
    Ok((service, made))
}

/// Reads the whole body.
async fn read(
    headers: &HeaderMap,
    body: Body,
    budget: &BodyBudget,
    config: &ServerConfig,
) -> Result<HeldBody, ApiError> {
    let most = config.max_body_bytes;
    let too_large = || Kind::BodyTooLarge.error(format!("the body is larger than the limit of {most} bytes"));
    let declared = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if declared.is_some_and(|length| length > most as u64) {
        return Err(too_large());
    }
    let whole = async {
        let mut body = body;
        let mut share = None;
        let mut bytes = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| {
                Kind::InvalidJson.error(format!("the body could not be read to its end: {error}"))
            })?;
            let Ok(data) = frame.into_data() else { continue };
            if bytes.len() + data.len() > most {
                return Err(too_large());
            }
            budget.cover(&mut share, bytes.len() + data.len())?;
            bytes.extend_from_slice(&data);
        }
        Ok(HeldBody { bytes: bytes.freeze(), _share: share })
    };
    tokio::time::timeout(config.body_timeout, whole).await.unwrap_or_else(|_| {
        let seconds = config.body_timeout.as_secs_f32();
        Err(Kind::BodyTimeout.error(format!("the body did not arrive within {seconds} s")))
    })
}

impl HeldBody {
    /// The body as a JSON object. CPU work in proportion to the size: call it outside the async threads.
    pub(crate) fn parse(self) -> Result<Map<String, Value>, ApiError> {
        // Some Windows programs begin every text with a byte order mark.
        let text = self.bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&self.bytes);
        // serde_json itself refuses to nest deeper than 128.
        let parsed = match serde_json::from_slice(text) {
            Ok(parsed) => Ok(parsed),
            Err(error) => match surrogates::repair(text) {
                Some(repaired) => {
                    serde_json::from_slice(&repaired).map_err(|error| bad_json(&repaired, &error))
                }
                None => Err(bad_json(text, &error)),
            },
        };
        match parsed {
            Ok(Value::Object(map)) => Ok(map),
            Ok(other) => {
                let found = crate::errors::brief(&other);
                Err(Kind::InvalidJson.error(format!("the body is {found}, and must be a JSON object")))
            }
            Err(error) => Err(error),
        }
    }
}

fn bad_json(text: &[u8], error: &serde_json::Error) -> ApiError {
    if text.trim_ascii().is_empty() {
        return Kind::InvalidJson.error("the body is empty, and must be a JSON object");
    }
    let Some(found) = foreign_word(text, error) else {
        return Kind::InvalidJson.error(format!("the body is not valid JSON: {error}"));
    };
    let ForeignWord { word, instead, field } = found;
    let (line, column) = (error.line(), error.column());
    let about = |of: &str| {
        let message =
            format!("the body is not valid JSON: {word}{of} at line {line} column {column}: {instead}");
        Kind::InvalidJson.error(message)
    };
    match field {
        Some(field) => about(&format!(" in `{field}`")).at(field),
        None => about(""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &[u8]) -> Result<Map<String, Value>, Kind> {
        HeldBody { bytes: Bytes::copy_from_slice(text), _share: None }.parse().map_err(|error| error.kind)
    }

    #[test]
    fn only_shallow_objects_parse() {
        assert!(parse(b"{\"a\": 1}").is_ok());
        assert!(parse(b"\xef\xbb\xbf{}").is_ok());
        assert_eq!(parse(b"{\"a\": \"\\ud83d!\"}").map(|map| map["a"].clone()), Ok(Value::from("\u{fffd}!")));
        assert_eq!(parse(b""), Err(Kind::InvalidJson));
        assert_eq!(parse(b"[]"), Err(Kind::InvalidJson));
        assert_eq!(parse(b"{\"a\": \xff}"), Err(Kind::InvalidJson));
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(parse(deep.as_bytes()), Err(Kind::InvalidJson));
    }

    #[test]
    fn content_types() {
        let check = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, text.parse().expect("a header"));
            require_json(&headers).map_err(|error| error.kind)
        };
        assert_eq!(check("application/json"), Ok(()));
        assert_eq!(check("Application/JSON; charset=utf-8"), Ok(()));
        for other in [
            "text/plain",
            "application/x-www-form-urlencoded",
            "multipart/form-data",
            "application/jsonx",
            "",
        ] {
            assert_eq!(check(other), Err(Kind::MediaType), "{other}");
        }
        assert!(require_json(&HeaderMap::new()).is_err());
    }

    #[test]
    fn the_budget_comes_back() {
        let budget = BodyBudget::new(10 * 1024);
        let (mut one, mut two) = (None, None);
        assert!(budget.cover(&mut one, 6 * 1024).is_ok());
        assert!(budget.cover(&mut one, 6 * 1024).is_ok(), "covered already");
        assert_eq!(budget.cover(&mut two, 5 * 1024).map_err(|error| error.kind), Err(Kind::Busy));
        drop(one);
        assert!(budget.cover(&mut two, 5 * 1024).is_ok());
    }
}
