//! Names for answers and calls.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

/// `prefix` and 24 hexadecimal digits. Unique, not secret: a random state for each half.
pub(crate) fn unique_id(prefix: &str) -> String {
    let half = || RandomState::new().hash_one(prefix);
    format!("{prefix}{:016x}{:08x}", half(), half() as u32)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn ids_differ() {
        let ids: HashSet<String> = (0..10_000).map(|_| unique_id("call_")).collect();
        assert_eq!(ids.len(), 10_000);
        assert!(ids.iter().all(|id| id.len() == "call_".len() + 24), "{:?}", ids.iter().next());
    }
}
