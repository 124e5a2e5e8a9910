//! Exceptions of Objective-C. Metal throws few, but one that nobody catches ends the program: what is told a queue of Metal 4, which is new, is
//! told from here, so that an exception is an error like any other. What Metal asserts (its validation layer does) ends the program all the same.

use std::panic::AssertUnwindSafe;

use objc2::exception::catch;

use crate::gpu::{Fault, GpuError};

/// Does something; an exception on the way is an error. Values that it was changing are only dropped afterwards, or refuse to go on.
pub(super) fn caught<T>(work: impl FnOnce() -> Result<T, GpuError>) -> Result<T, GpuError> {
    catch(AssertUnwindSafe(work)).unwrap_or_else(|exception| {
        let text =
            exception.map_or_else(|| "exception of nothing".to_owned(), |thrown| format!("{thrown:?}"));
        Err(GpuError::new(Fault::Commands, format!("Objective-C {text}")))
    })
}
