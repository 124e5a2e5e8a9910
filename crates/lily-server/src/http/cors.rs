//! Which web pages of other origins may use this server: none, unless the operator names them.

use axum::body::Body;
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::response::Response;

/// The origins that may.
#[derive(Debug)]
pub(crate) struct Origins(Vec<String>);

impl Origins {
    /// As a browser writes them: `https://page.example`, `http://localhost:3000`; `*` is every origin.
    pub(crate) fn new(origins: &[String]) -> Self {
        Origins(
            origins.iter().map(|origin| origin.trim().trim_end_matches('/').to_ascii_lowercase()).collect(),
        )
    }

    /// The origin of a request, if it is one of these.
    pub(crate) fn allowed(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let origin = headers.get(ORIGIN)?;
        let text = origin.to_str().ok()?.to_ascii_lowercase();
        self.0.iter().any(|own| own == "*" || *own == text).then(|| origin.clone())
    }
}

/// The answer to a browser that asks whether it may send a request; `None` for other requests.
pub(crate) fn preflight(request: &Parts, origin: &HeaderValue) -> Option<Response> {
    let asks = request.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD);
    if request.method != Method::OPTIONS || !asks {
        return None;
    }
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, OPTIONS"));
    if let Some(wanted) = request.headers.get(ACCESS_CONTROL_REQUEST_HEADERS) {
        headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
    }
    headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    // A public page that asks for a machine of the local network.
    if request.headers.get("access-control-request-private-network").is_some_and(|value| value == "true") {
        headers.insert("access-control-allow-private-network", HeaderValue::from_static("true"));
    }
    allow(headers, origin);
    Some(response)
}

/// Lets a page of this origin read a response.
pub(crate) fn allow(headers: &mut HeaderMap, origin: &HeaderValue) {
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
    headers.insert(
        ACCESS_CONTROL_EXPOSE_HEADERS,
        HeaderValue::from_static("x-request-id, request-id, retry-after"),
    );
    headers.append(VARY, HeaderValue::from_static("origin"));
}
