//! Which web pages of other origins may use this server: none, unless the operator names them.

use std::net::Ipv6Addr;

use axum::body::Body;
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::response::Response;

use crate::http::listener::BindError;

/// The origins that may.
#[derive(Debug)]
pub(crate) struct Origins(Vec<String>);

impl Origins {
    /// As a browser writes them: `https://page.example`, `http://localhost:3000`; `*` is every origin.
    pub(crate) fn new(origins: &[String]) -> Result<Self, BindError> {
        origins.iter().map(|origin| normal(origin)).collect::<Result<_, _>>().map(Origins)
    }

    /// The origin of a request, if it is one of these.
    pub(crate) fn allowed(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let origin = headers.get(ORIGIN)?;
        let text = origin.to_str().ok()?.to_ascii_lowercase();
        self.0.iter().any(|own| own == "*" || *own == text).then(|| origin.clone())
    }
}

/// An origin in the form in which browsers send it; an error for what no browser would ever send.
fn normal(given: &str) -> Result<String, BindError> {
    let origin = given.trim().to_ascii_lowercase();
    if origin == "*" {
        return Ok(origin);
    }
    let refused = |problem: String| Err(BindError::Flag { flag: "--cors-origins", problem });
    if origin == "null" {
        // Of files, and of frames that any page can make.
        return refused("any page can make itself the origin null; if everyone is meant, say *".into());
    }
    let address = origin.strip_suffix('/').unwrap_or(&origin).split_once("://");
    let known = address.filter(|(scheme, host)| is_scheme(scheme) && is_host_and_port(host));
    let Some((scheme, host)) = known else {
        return refused(format!(
            "{given:?} is no origin; wanted scheme, host and port alone, as https://page.example or http://localhost:3000, or *"
        ));
    };
    // Browsers leave out the scheme's own port.
    let own_port = match scheme {
        "http" => ":80",
        "https" => ":443",
        _ => "",
    };
    Ok(format!("{scheme}://{}", host.strip_suffix(own_port).unwrap_or(host)))
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_lowercase())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
}

fn is_host_and_port(text: &str) -> bool {
    let (host, port) = match text.rsplit_once(':').filter(|_| !text.ends_with(']')) {
        Some((host, port)) => (host, Some(port)),
        None => (text, None),
    };
    let address = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let is_host = match address {
        Some(address) => address.parse::<Ipv6Addr>().is_ok(),
        None => {
            !host.is_empty()
                && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
        }
    };
    is_host && port.is_none_or(|port| port.parse::<u16>().is_ok())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_what_browsers_send() {
        for (given, sent) in [
            ("*", "*"),
            ("https://Page.Example/", "https://page.example"),
            ("https://page.example:443", "https://page.example"),
            ("http://page.example:443", "http://page.example:443"),
            ("http://localhost:80", "http://localhost"),
            (" http://localhost:3000 ", "http://localhost:3000"),
            ("http://[::1]:3000", "http://[::1]:3000"),
            ("http://[::1]", "http://[::1]"),
            ("chrome-extension://abcdefgh", "chrome-extension://abcdefgh"),
            ("tauri://localhost", "tauri://localhost"),
        ] {
            assert_eq!(normal(given).ok().as_deref(), Some(sent), "{given}");
        }
        for given in [
            "",
            "foo",
            "page.example",
            "null",
            "https://",
            "https:///",
            "://page.example",
            "https://page.example/path",
            "https://page.example//",
            "https://user@page.example",
            "https://*.page.example",
            "https://page.example:x",
            "https://page.example:",
            "https://page.example:70000",
            "https://page example",
            "https://p\u{e4}ge.example",
            "http://::1",
            "http://[::1",
            "http://[x]:1",
            "*.example",
            "https://a,https://b",
            "file:///",
        ] {
            let refused = normal(given).expect_err(given).to_string();
            assert!(refused.starts_with("--cors-origins: "), "{refused}");
        }
    }
}
