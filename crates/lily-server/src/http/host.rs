//! Which `Host` a request may name. A page on another site can make a browser resolve that site's name to 127.0.0.1 (DNS
//! rebinding); the browser then sends the foreign name in `Host`, and that is where such a request is told apart.

use std::net::IpAddr;

use axum::http::header::HOST;
use axum::http::request::Parts;

use crate::errors::{ApiError, Kind};
use crate::http::listener::BindError;

/// The names that this server answers to.
#[derive(Debug)]
pub(crate) struct HostRule {
    names: Vec<String>,
    /// Bound beyond loopback: any literal address will do, since rebinding needs a name.
    any_address: bool,
}

impl HostRule {
    /// `bound`: the host as the operator wrote it and the address it came to; `extra`: names allowed besides.
    pub(crate) fn new(host: &str, bound: IpAddr, extra: &[String]) -> Result<Self, BindError> {
        let mut names = vec!["localhost".to_string(), normal(host)];
        for given in extra {
            let name = normal(given);
            let in_brackets = given.trim_start().starts_with('[');
            if !is_name(&name) || (in_brackets && name.parse::<IpAddr>().is_err()) {
                let problem = format!(
                    "{given:?} is no host; wanted a name or an address as a client writes it, without scheme and path, as my-box.lan"
                );
                return Err(BindError::Flag { flag: "--allowed-hosts", problem });
            }
            names.push(name);
        }
        Ok(HostRule { names, any_address: !bound.is_loopback() })
    }

    /// Checks `Host`, and the authority of an absolute-form target, which stands above it.
    pub(crate) fn check(&self, request: &Parts) -> Result<(), ApiError> {
        let mut hosts = request.headers.get_all(HOST).iter();
        let host = match (hosts.next(), hosts.next()) {
            (Some(host), None) => Some(
                host.to_str()
                    .map_err(|_| Kind::BadHost.error("the Host header is not plain ASCII").at("Host"))?,
            ),
            (None, _) => None,
            (Some(_), Some(_)) => return Err(Kind::BadHost.error("several Host headers").at("Host")),
        };
        let target = request.uri.authority().map(|authority| authority.as_str());
        if host.is_none() && target.is_none() {
            // Only HTTP/1.0 may leave it out, and no browser speaks that.
            return match request.version {
                axum::http::Version::HTTP_10 | axum::http::Version::HTTP_09 => Ok(()),
                _ => Err(Kind::BadHost.error("the Host header is missing").at("Host")),
            };
        }
        for name in [host, target].into_iter().flatten() {
            if !self.allows(name) {
                let message = format!(
                    "this server does not answer for the host {name:?}; allow it with --allowed-hosts if it is yours"
                );
                return Err(Kind::HostRefused.error(message).at("Host"));
            }
        }
        Ok(())
    }

    fn allows(&self, header: &str) -> bool {
        let name = normal(header);
        match name.parse::<IpAddr>() {
            Ok(address) => self.any_address || address.is_loopback() || self.names.contains(&name),
            Err(_) => self.names.contains(&name),
        }
    }
}

/// Lower case, without port, IPv6 brackets and the trailing dot of an absolute name.
fn normal(host: &str) -> String {
    let host = host.trim();
    let name = match host.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((address, port)) if port.is_empty() || is_port(port) => address,
            _ => host,
        },
        // More than one colon and no brackets: an address as an operator may write it.
        None if host.matches(':').count() > 1 => host,
        None => match host.split_once(':') {
            Some((name, _)) if is_port(&host[name.len()..]) => name,
            _ => host,
        },
    };
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

/// What a Host header can name: whatever is not like this would be allowed in vain.
fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    !name.is_empty() && (name.bytes().all(plain) || name.parse::<IpAddr>().is_ok())
}

/// `:8080`, or a bare colon, which the grammar allows.
fn is_port(text: &str) -> bool {
    text.strip_prefix(':').is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use axum::http::{Request, Version};

    use super::*;

    fn rule(host: &str, bound: &str) -> HostRule {
        HostRule::new(host, bound.parse().expect("an address"), &["My.Box".into()]).expect("names")
    }

    #[test]
    fn only_what_a_header_can_name_may_be_allowed() {
        let allowed = |name: &str| HostRule::new("127.0.0.1", IpAddr::from([127, 0, 0, 1]), &[name.into()]);
        for name in ["my_box", "my-box.lan:8080", "10.0.0.7", "[fe80::1]:80", "fe80::1", " my.box. "] {
            assert!(allowed(name).is_ok(), "{name}");
        }
        for name in [
            "",
            " ",
            "*",
            "*.lan",
            "http://my.box",
            "my.box/path",
            "a b",
            "m\u{e4}.box",
            "my.box:x",
            "[x]",
            ".",
        ] {
            let refused = allowed(name).expect_err(name).to_string();
            assert!(refused.starts_with("--allowed-hosts: "), "{refused}");
        }
    }

    #[test]
    fn own_names_pass_and_foreign_ones_do_not() {
        let rule = rule("127.0.0.1", "127.0.0.1");
        for own in [
            "localhost",
            "LOCALHOST:80",
            "localhost.",
            "localhost.:8080",
            "127.0.0.1",
            "127.0.0.1:1",
            "127.9.9.9",
            "[::1]",
            "[::1]:8080",
            "my.box",
            "my.box:",
            "MY.BOX.:99",
        ] {
            assert!(rule.allows(own), "{own}");
        }
        for foreign in [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "192.168.1.5",
            "",
            ".",
            "localhost:80:80",
            "localhost:x",
            "[::1",
            "[::1]x",
            "[::2]",
            "0.0.0.0",
            "user@localhost",
            "localhost/",
            "127.0.0.1:80@evil",
            "::ffff:10.0.0.1",
            "localhost..",
        ] {
            assert!(!rule.allows(foreign), "{foreign}");
        }
    }

    #[test]
    fn a_public_bind_takes_any_address_but_no_other_name() {
        let rule = rule("0.0.0.0", "0.0.0.0");
        for own in ["192.168.1.5:8080", "[fe80::1]", "127.0.0.1", "localhost", "0.0.0.0"] {
            assert!(rule.allows(own), "{own}");
        }
        assert!(!rule.allows("evil.example:8080"));
    }

    #[test]
    fn the_header_stands_alone() {
        let rule = rule("127.0.0.1", "127.0.0.1");
        let kind = |build: axum::http::request::Builder| {
            let (parts, ()) = build.body(()).expect("a request").into_parts();
            rule.check(&parts).map_err(|error| error.kind)
        };
        assert_eq!(kind(Request::get("/").header(HOST, "localhost")), Ok(()));
        assert_eq!(kind(Request::get("/")), Err(Kind::BadHost));
        assert_eq!(kind(Request::get("/").version(Version::HTTP_10)), Ok(()));
        assert_eq!(kind(Request::get("/").header(HOST, "localhost").header(HOST, "a")), Err(Kind::BadHost));
        assert_eq!(
            kind(Request::get("http://evil.example/").header(HOST, "localhost")),
            Err(Kind::HostRefused)
        );
        assert_eq!(kind(Request::get("http://localhost/").header(HOST, "evil")), Err(Kind::HostRefused));
    }
}
