//! The tree against a plain list of prefixes, and the order of eviction.

use proptest::prelude::*;

use super::*;
use crate::cuts::{CutMarkers, CutRule};

const COPY: usize = 100;

/// Cuts at multiples of 4 and after every 1.
fn cuts(tokens: &[u32]) -> Vec<Cut> {
    CutRule::new(4, CutMarkers { end_of_turn: vec![1], assistant_header: vec![] }).cuts(tokens)
}

fn insert(cache: &mut PrefixCache, tokens: &[u32], snapshot: u64) -> Result<(), SnapshotId> {
    let all = cuts(tokens);
    let last = *all.last().unwrap();
    cache.insert(tokens, &all, last, SnapshotId(snapshot), COPY)
}

fn find(cache: &PrefixCache, tokens: &[u32]) -> Option<(u64, usize)> {
    cache.find(tokens, &cuts(tokens)).map(|hit| (hit.snapshot.0, hit.length))
}

fn evict(cache: &mut PrefixCache) -> Option<u64> {
    cache.evict().map(|snapshot| snapshot.0)
}

#[test]
fn the_longest_prefix_that_leaves_a_token_is_found() {
    let mut cache = PrefixCache::new(1 << 20);
    insert(&mut cache, &[5, 5, 5, 5], 1).unwrap();
    insert(&mut cache, &[5, 5, 5, 5, 6, 6, 6, 6], 2).unwrap();
    assert_eq!(find(&cache, &[5, 5, 5, 5, 6, 6, 6, 6, 7]), Some((2, 8)));
    assert_eq!(find(&cache, &[5, 5, 5, 5, 6, 6, 6, 6]), Some((1, 4)), "the last token's logits are needed");
    assert_eq!(find(&cache, &[5, 5, 5, 5, 6, 6, 6, 7, 7]), Some((1, 4)));
    assert_eq!(find(&cache, &[5, 5, 5, 6, 6]), None);
    assert_eq!(find(&cache, &[5, 5]), None);
}

#[test]
fn a_second_snapshot_of_the_same_prefix_is_handed_back() {
    let mut cache = PrefixCache::new(1 << 20);
    insert(&mut cache, &[5, 1], 1).unwrap();
    assert_eq!(insert(&mut cache, &[5, 1], 2), Err(SnapshotId(2)));
    assert_eq!(find(&cache, &[5, 1, 9]), Some((1, 2)));
    assert_eq!(cache.snapshots(), 1);
}

#[test]
fn bytes_count_copies_and_each_shared_edge_once() {
    let mut cache = PrefixCache::new(1 << 20);
    cache.set_bytes_per_token(10);
    insert(&mut cache, &[5, 5, 5, 5, 1], 1).unwrap();
    insert(&mut cache, &[5, 5, 5, 5, 6, 6, 1], 2).unwrap();
    assert_eq!(cache.device_bytes(), 2 * COPY + (4 + 1 + 3) * 10);
    assert_eq!(cache.bytes(), 2 * COPY + (4 + 1 + 3) * (10 + 4));
    cache.remove(SnapshotId(2));
    assert_eq!(cache.device_bytes(), COPY + 5 * 10);
    cache.remove(SnapshotId(1));
    assert_eq!((cache.bytes(), cache.snapshots()), (0, 0));
}

#[test]
fn an_inner_snapshot_leaves_the_way_to_the_others() {
    let mut cache = PrefixCache::new(1 << 20);
    insert(&mut cache, &[5, 1], 1).unwrap();
    insert(&mut cache, &[5, 1, 6, 1], 2).unwrap();
    cache.remove(SnapshotId(1));
    assert_eq!(find(&cache, &[5, 1, 6, 1, 9]), Some((2, 4)));
    assert_eq!(find(&cache, &[5, 1, 7]), None);
}

#[test]
fn the_least_recently_used_goes_first() {
    let mut cache = PrefixCache::new(1 << 20);
    for (snapshot, token) in [(1, 5), (2, 6), (3, 7)] {
        cache.tick();
        insert(&mut cache, &[token, 1], snapshot).unwrap();
    }
    cache.tick();
    cache.touch(SnapshotId(1));
    assert_eq!([evict(&mut cache), evict(&mut cache), evict(&mut cache)], [Some(2), Some(3), Some(1)]);
    assert_eq!(evict(&mut cache), None);
}

#[test]
fn unused_multiples_go_before_markers_but_not_for_ever() {
    let fill = |ages: u64, used: bool| {
        let mut cache = PrefixCache::new(1 << 20);
        insert(&mut cache, &[5, 1], 1).unwrap();
        for _ in 0..ages {
            cache.tick();
        }
        insert(&mut cache, &[6, 6, 6, 6], 2).unwrap();
        if used {
            cache.touch(SnapshotId(2));
        }
        evict(&mut cache)
    };
    assert_eq!(fill(0, false), Some(2));
    assert_eq!(fill(2, false), Some(2), "age 3 against a weight of 4");
    assert_eq!(fill(4, false), Some(1), "age 5 against a weight of 4");
    assert_eq!(fill(1, true), Some(1), "a multiple that was used weighs like a marker");
}

#[test]
fn of_equals_the_shortest_prefix_goes_first() {
    let mut cache = PrefixCache::new(1 << 20);
    insert(&mut cache, &[5, 1, 6, 1, 7, 1], 3).unwrap();
    insert(&mut cache, &[5, 1], 1).unwrap();
    insert(&mut cache, &[5, 1, 6, 1], 2).unwrap();
    assert_eq!([evict(&mut cache), evict(&mut cache), evict(&mut cache)], [Some(1), Some(2), Some(3)]);
}

#[test]
fn eviction_stops_at_the_budget() {
    let mut cache = PrefixCache::new(2 * COPY + 50);
    for (snapshot, token) in [(1, 5), (2, 6), (3, 7)] {
        insert(&mut cache, &[token, 1], snapshot).unwrap();
    }
    assert!(cache.evict_beyond(0).is_some());
    assert_eq!(cache.evict_beyond(0), None);
    assert!(cache.evict_beyond(COPY).is_some(), "room for one more");
    assert_eq!(cache.evict_beyond(COPY), None);
}

#[test]
fn a_cache_without_a_budget_takes_nothing() {
    let mut cache = PrefixCache::new(0);
    assert_eq!(insert(&mut cache, &[5, 1], 1), Err(SnapshotId(1)));
}

proptest! {
    #[test]
    fn behaves_as_a_list_of_prefixes(
        steps in prop::collection::vec((0u8..4, prop::collection::vec(1u32..4, 1..14), any::<prop::sample::Index>()), 1..80),
    ) {
        let mut cache = PrefixCache::new(1 << 20);
        let mut list: Vec<(Vec<u32>, u64)> = Vec::new();
        for (step, (kind, tokens, at)) in steps.into_iter().enumerate() {
            cache.tick();
            let all = cuts(&tokens);
            match kind {
                0 if !all.is_empty() => {
                    let cut = all[at.index(all.len())];
                    let prefix = tokens[..cut.position].to_vec();
                    let known = list.iter().any(|(other, _)| *other == prefix);
                    prop_assert_eq!(cache.contains(&tokens, &all, cut), known);
                    let taken = cache.insert(&tokens, &all, cut, SnapshotId(step as u64), COPY);
                    prop_assert_eq!(taken.is_ok(), !known);
                    if !known {
                        list.push((prefix, step as u64));
                    }
                }
                1 => {
                    let gone = evict(&mut cache);
                    prop_assert_eq!(gone.is_some(), !list.is_empty());
                    list.retain(|(_, snapshot)| Some(*snapshot) != gone);
                }
                2 if !list.is_empty() => {
                    let (_, snapshot) = list.remove(at.index(list.len()));
                    cache.remove(SnapshotId(snapshot));
                }
                _ => {
                    let fitting = list.iter().filter(|(p, _)| p.len() < tokens.len() && tokens.starts_with(p));
                    let longest = fitting.max_by_key(|(prefix, _)| prefix.len());
                    prop_assert_eq!(find(&cache, &tokens), longest.map(|(p, snapshot)| (*snapshot, p.len())));
                }
            }
            prop_assert_eq!(cache.snapshots(), list.len());
            // Every token that leads to a snapshot is held once: count the distinct prefixes of all lengths.
            let held: std::collections::BTreeSet<&[u32]> =
                list.iter().flat_map(|(prefix, _)| (1..=prefix.len()).map(|n| &prefix[..n])).collect();
            // Edges are whole runs between cuts, so two that part inside one hold its start twice.
            prop_assert!(cache.tokens >= held.len());
            prop_assert_eq!(cache.copied_bytes, COPY * list.len());
        }
        while cache.evict().is_some() {}
        prop_assert_eq!(cache.bytes(), 0);
        prop_assert_eq!(cache.nodes.iter().flatten().count(), 1, "only the root is left");
    }
}
