//! What the system's errors of commands mean, by their domains and codes: what can be done about them.

#![cfg_attr(not(any(target_os = "macos", test)), allow(dead_code, reason = "only Metal has such errors"))]

use crate::gpu::{Fault, GpuError};

/// Of command buffers (`MTLCommandBufferError`), and of the commits of a queue of Metal 4 (`MTL4CommandQueueError`).
const CLASSIC: &str = "MTLCommandBufferErrorDomain";
/// As the bindings name its constant.
const METAL4: &str = "MTL4CommandQueueErrorDomain";

/// The error of commands that a queue was given. A code says something in its own domain only.
///
/// *Lost* is what no other commands of this queue get over: access that was revoked (macOS ignores a process that caused too many faults) and
/// a GPU that was removed. A GPU that was reset ends commands as failed, or as victims of somebody else's (code 1), and takes others
/// afterwards; so does one that may not be used in the background (not permitted).
pub(crate) fn of_commands(domain: &str, code: isize, words: &str) -> GpuError {
    let kind = match (domain, code) {
        (CLASSIC, 2) | (METAL4, 1) => Fault::Timeout,
        (CLASSIC, 8) | (METAL4, 3) => Fault::Memory,
        (CLASSIC, 4 | 11) | (METAL4, 4 | 5) => Fault::Lost,
        _ => Fault::Commands,
    };
    GpuError::new(kind, format!("{words} ({domain} {code})"))
}

/// The codes are those of the bindings.
#[cfg(target_os = "macos")]
const _: () = {
    use objc2_metal::{MTL4CommandQueueError as Metal4, MTLCommandBufferError as Classic};
    assert!(Classic::Timeout.0 == 2 && Classic::OutOfMemory.0 == 8);
    assert!(Classic::AccessRevoked.0 == 4 && Classic::DeviceRemoved.0 == 11);
    assert!(Metal4::Timeout.0 == 1 && Metal4::OutOfMemory.0 == 3);
    assert!(Metal4::DeviceRemoved.0 == 4 && Metal4::AccessRevoked.0 == 5);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_means_what_its_domain_says() {
        let kind = |domain: &str, code| of_commands(domain, code, "words").kind;
        for (code, classic, metal4) in [
            (0, Fault::Commands, Fault::Commands),
            (1, Fault::Commands, Fault::Timeout),
            (2, Fault::Timeout, Fault::Commands),
            (3, Fault::Commands, Fault::Memory),
            (4, Fault::Lost, Fault::Lost),
            (5, Fault::Commands, Fault::Lost),
            (7, Fault::Commands, Fault::Commands),
            (8, Fault::Memory, Fault::Commands),
            (11, Fault::Lost, Fault::Commands),
            (-1, Fault::Commands, Fault::Commands),
        ] {
            assert_eq!((kind(CLASSIC, code), kind(METAL4, code)), (classic, metal4), "{code}");
            assert_eq!(kind("NSPOSIXErrorDomain", code), Fault::Commands);
        }
        let said = of_commands(CLASSIC, 4, "Ignored").to_string();
        assert_eq!(said, "Ignored (MTLCommandBufferErrorDomain 4)");
    }
}
