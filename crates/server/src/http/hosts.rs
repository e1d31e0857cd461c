use std::net::{IpAddr, SocketAddr};

use axum::http::uri::Authority;

/// Who a listener may be called, so that no page of another site reaches it under a name of its own.
#[derive(Clone, Debug)]
pub struct Hosts {
    /// `http` or `https`.
    pub(crate) scheme: &'static str,
    address: SocketAddr,
    names: Vec<String>,
}

impl Hosts {
    /// Those of a listener: its own address and, at whatever port, names that it was given.
    pub fn new(address: SocketAddr, is_tls: bool, names: &[String]) -> Self {
        Self { scheme: if is_tls { "https" } else { "http" }, address, names: names.to_vec() }
    }

    /// Whether a `Host` header means this listener.
    pub(crate) fn accepts(&self, host: &str) -> bool {
        let Ok(authority) = host.parse::<Authority>() else { return false };
        if host.contains('@') {
            return false;
        }
        let name = authority.host();
        if self.names.iter().any(|own| own.eq_ignore_ascii_case(name)) {
            return true;
        }
        let default_port = if self.scheme == "https" { 443 } else { 80 };
        if authority.port_u16().unwrap_or(default_port) != self.address.port() {
            return false;
        }
        let literal = name.trim_start_matches('[').trim_end_matches(']');
        match literal.parse::<IpAddr>() {
            Ok(address) => address.is_loopback() || !self.address.ip().is_loopback(),
            Err(_) => name.eq_ignore_ascii_case("localhost"),
        }
    }

    /// Whether an `Origin` header is a page of the same host.
    pub(crate) fn is_own_origin(&self, origin: &str, host: &str) -> bool {
        let own = origin.strip_prefix(self.scheme).and_then(|rest| rest.strip_prefix("://"));
        own.is_some_and(|own| own.eq_ignore_ascii_case(host))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepted(hosts: &Hosts, candidates: &[&'static str]) -> Vec<&'static str> {
        candidates.iter().copied().filter(|host| hosts.accepts(host)).collect()
    }

    #[test]
    fn a_loopback_listener_is_called_by_loopback_names_at_its_port_only() {
        let hosts = Hosts::new("127.0.0.1:7878".parse().unwrap(), false, &[]);
        let good = ["localhost:7878", "127.0.0.1:7878", "[::1]:7878", "LOCALHOST:7878"];
        assert_eq!(accepted(&hosts, &good), good);
        let bad = ["evil.example:7878", "localhost", "127.0.0.1:80", "192.0.2.1:7878", "a@localhost:7878", "", " "];
        assert_eq!(accepted(&hosts, &bad), [""; 0]);
    }

    #[test]
    fn a_wider_listener_is_also_called_by_addresses_and_by_the_names_it_was_given() {
        let hosts = Hosts::new("0.0.0.0:443".parse().unwrap(), true, &["gpu.example".to_owned()]);
        let good = ["192.0.2.1", "192.0.2.1:443", "[2001:db8::1]:443", "gpu.example", "GPU.example:8443", "localhost"];
        assert_eq!(accepted(&hosts, &good), good);
        assert_eq!(accepted(&hosts, &["evil.example", "192.0.2.1:80", "gpu.example.evil"]), [""; 0]);
    }

    #[test]
    fn an_origin_is_our_own_if_scheme_host_and_port_are() {
        let hosts = Hosts::new("127.0.0.1:7878".parse().unwrap(), false, &[]);
        let is_own = |origin| hosts.is_own_origin(origin, "localhost:7878");
        assert!(is_own("http://localhost:7878"));
        for other in ["null", "https://localhost:7878", "http://localhost:7879", "http://localhost:7878.evil", ""] {
            assert!(!is_own(other), "{other}");
        }
    }
}
