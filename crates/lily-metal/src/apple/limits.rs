//! What somebody has set in place of the system's own limits.

use std::ffi::{CStr, c_char, c_int, c_void};

unsafe extern "C" {
    fn sysctlbyname(
        name: *const c_char,
        old: *mut c_void,
        old_bytes: *mut usize,
        new: *mut c_void,
        new_bytes: usize,
    ) -> c_int;
}

/// A number of the system, of 4 or 8 bytes; none where there is no such number.
fn number(name: &CStr) -> Option<u64> {
    let (mut value, mut bytes) = (0u64, size_of::<u64>());
    // SAFETY: the name ends with a zero, the system writes `bytes` bytes at most, and nothing is set. What it leaves is zero, so that
    // on a little-endian machine, which all of these are, a shorter number is the same number.
    let status = unsafe {
        let value = (&raw mut value).cast();
        sysctlbyname(name.as_ptr(), value, &raw mut bytes, std::ptr::null_mut(), 0)
    };
    (status == 0).then_some(value)
}

/// `iogpu.wired_limit_mb`, in bytes, where it is set: 0 leaves the limit to the system.
pub(super) fn wired() -> Option<usize> {
    let mebibytes = number(c"iogpu.wired_limit_mb").filter(|limit| *limit > 0)?;
    usize::try_from(mebibytes).ok()?.checked_mul(1 << 20)
}
