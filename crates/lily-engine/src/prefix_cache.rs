//! The tree from prompt prefixes to snapshots.
//!
//! An edge is the run of tokens between two neighbouring cuts. Cuts are a pure function of the tokens before them, so
//! two prompts with a common prefix walk the same edges within it, and no edge ever has to be split. A node may hold a
//! snapshot; nodes without one stand on the way to others.
//!
//! Bytes. A snapshot costs what it copies (recurrent state), known when it is taken, while the KV of its prefix is
//! shared along the path: it costs once per edge, tokens x bytes per token, until no snapshot below needs it. The
//! token ids of the tree are counted too.
//!
//! Eviction drops the snapshot with the largest age x weight. Age counts requests since the snapshot was made or last
//! used; a multiple of the chunk that was never used weighs 4, all else 1: it is the likelier never to be, and still
//! no snapshot stays for ever. Of equals, the one nearer the start of its prompt goes first: its tokens are the
//! cheapest to compute again.
//!
//! The tree knows no device. Whoever evicts must discard the snapshot that is handed out.

use std::collections::HashMap;
use std::sync::Arc;

use lily_model::SnapshotId;

use crate::cuts::{Cut, CutKind};

/// See the head of the file.
const UNUSED_MULTIPLE_WEIGHT: u64 = 4;

/// A prefix whose state is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hit {
    pub(crate) snapshot: SnapshotId,
    /// Tokens of the prefix.
    pub(crate) length: usize,
}

#[derive(Debug)]
struct Entry {
    snapshot: SnapshotId,
    copied_bytes: usize,
    kind: CutKind,
    last_used: u64,
    used: bool,
}

#[derive(Debug)]
struct Node {
    parent: usize,
    /// Tokens since the parent.
    edge: Arc<[u32]>,
    /// Tokens since the root.
    length: usize,
    children: HashMap<Arc<[u32]>, usize>,
    entry: Option<Entry>,
}

const ROOT: usize = 0;

/// The tree and its budget.
#[derive(Debug)]
pub(crate) struct PrefixCache {
    /// `None` marks a free place.
    nodes: Vec<Option<Node>>,
    free: Vec<usize>,
    by_snapshot: HashMap<SnapshotId, usize>,
    budget: usize,
    copied_bytes: usize,
    tokens: usize,
    /// KV bytes a token takes, as measured so far.
    bytes_per_token: usize,
    clock: u64,
}

impl PrefixCache {
    /// A cache of `budget` bytes; 0 holds nothing.
    pub(crate) fn new(budget: usize) -> Self {
        let root =
            Node { parent: ROOT, edge: Arc::from([]), length: 0, children: HashMap::new(), entry: None };
        PrefixCache {
            nodes: vec![Some(root)],
            free: Vec::new(),
            by_snapshot: HashMap::new(),
            budget,
            copied_bytes: 0,
            tokens: 0,
            bytes_per_token: 0,
            clock: 0,
        }
    }

    /// Whether anything may ever be kept.
    pub(crate) fn enabled(&self) -> bool {
        self.budget > 0
    }

    /// The budget in bytes.
    pub(crate) fn budget(&self) -> usize {
        self.budget
    }

    /// Snapshots held.
    pub(crate) fn snapshots(&self) -> usize {
        self.by_snapshot.len()
    }

    /// Bytes held, token ids included.
    pub(crate) fn bytes(&self) -> usize {
        self.copied_bytes + self.tokens * (self.bytes_per_token + size_of::<u32>())
    }

    /// Bytes of the device's state held: without the token ids.
    pub(crate) fn device_bytes(&self) -> usize {
        self.copied_bytes + self.tokens * self.bytes_per_token
    }

    /// Tells the cache what a token's KV costs.
    pub(crate) fn set_bytes_per_token(&mut self, bytes: usize) {
        self.bytes_per_token = bytes;
    }

    /// Another request begins: everything grows older.
    pub(crate) fn tick(&mut self) {
        self.clock += 1;
    }

    /// The longest prefix of `tokens` at one of its `cuts` whose state is there, shorter than the whole: the logits of
    /// the last token must be computed.
    pub(crate) fn find(&self, tokens: &[u32], cuts: &[Cut]) -> Option<Hit> {
        let mut best = None;
        let (mut node, mut start) = (ROOT, 0);
        for cut in cuts.iter().filter(|cut| cut.position < tokens.len()) {
            let Some(next) = self.child(node, &tokens[start..cut.position]) else { break };
            (node, start) = (next, cut.position);
            if let Some(entry) = self.node(node).and_then(|node| node.entry.as_ref()) {
                best = Some(Hit { snapshot: entry.snapshot, length: cut.position });
            }
        }
        best
    }

    /// Marks a snapshot as used now.
    pub(crate) fn touch(&mut self, snapshot: SnapshotId) {
        let clock = self.clock;
        if let Some(entry) = self.entry_mut(snapshot) {
            (entry.last_used, entry.used) = (clock, true);
        }
    }

    /// Whether the state at `cut` of `tokens` is there already.
    pub(crate) fn contains(&self, tokens: &[u32], cuts: &[Cut], cut: Cut) -> bool {
        let mut node = Some(ROOT);
        let mut start = 0;
        for step in cuts.iter().take_while(|step| step.position <= cut.position) {
            node = node.and_then(|at| self.child(at, &tokens[start..step.position]));
            start = step.position;
        }
        start == cut.position && node.and_then(|at| self.node(at)).is_some_and(|node| node.entry.is_some())
    }

    /// Keeps the snapshot of `tokens` up to `cut`, one of its `cuts`. Hands it back where there is one already. The
    /// budget may be exceeded after it: see [`PrefixCache::evict_beyond`].
    pub(crate) fn insert(
        &mut self,
        tokens: &[u32],
        cuts: &[Cut],
        cut: Cut,
        snapshot: SnapshotId,
        copied_bytes: usize,
    ) -> Result<(), SnapshotId> {
        if !self.enabled() || self.contains(tokens, cuts, cut) {
            return Err(snapshot);
        }
        let (mut at, mut start) = (ROOT, 0);
        for step in cuts.iter().take_while(|step| step.position <= cut.position) {
            let edge = &tokens[start..step.position];
            at = self.child(at, edge).unwrap_or_else(|| self.grow(at, edge, step.position));
            start = step.position;
        }
        let entry = Entry { snapshot, copied_bytes, kind: cut.kind, last_used: self.clock, used: false };
        let Some(node) = self.nodes[at].as_mut() else { return Err(snapshot) };
        node.entry = Some(entry);
        self.by_snapshot.insert(snapshot, at);
        self.copied_bytes += copied_bytes;
        Ok(())
    }

    /// Evicts one snapshot if the cache holds more than its budget less `reserve` bytes.
    pub(crate) fn evict_beyond(&mut self, reserve: usize) -> Option<SnapshotId> {
        if self.bytes().saturating_add(reserve) > self.budget { self.evict() } else { None }
    }

    /// Evicts the snapshot that is worth least; `None` where there is none.
    pub(crate) fn evict(&mut self) -> Option<SnapshotId> {
        let worth = |&at: &usize| {
            let node = self.node(at)?;
            let entry = node.entry.as_ref()?;
            let idle = entry.kind == CutKind::Multiple && !entry.used;
            let weight = if idle { UNUSED_MULTIPLE_WEIGHT } else { 1 };
            let age = self.clock.saturating_sub(entry.last_used) + 1;
            // The id makes the order total, so that eviction does not depend on a hash map's order.
            Some((age * weight, std::cmp::Reverse(node.length), std::cmp::Reverse(entry.snapshot)))
        };
        let at = self.by_snapshot.values().copied().max_by_key(|at| worth(at))?;
        let snapshot = self.node(at)?.entry.as_ref()?.snapshot;
        self.remove(snapshot);
        Some(snapshot)
    }

    /// Forgets a snapshot, and the nodes that only it needed.
    pub(crate) fn remove(&mut self, snapshot: SnapshotId) {
        let Some(mut at) = self.by_snapshot.remove(&snapshot) else { return };
        if let Some(entry) = self.nodes[at].as_mut().and_then(|node| node.entry.take()) {
            self.copied_bytes -= entry.copied_bytes;
        }
        while at != ROOT && self.node(at).is_some_and(|node| node.entry.is_none() && node.children.is_empty())
        {
            let Some(node) = self.nodes[at].take() else { return };
            self.free.push(at);
            self.tokens -= node.edge.len();
            at = node.parent;
            if let Some(parent) = self.nodes[at].as_mut() {
                parent.children.remove(&node.edge);
            }
        }
    }

    fn grow(&mut self, parent: usize, edge: &[u32], length: usize) -> usize {
        let edge: Arc<[u32]> = Arc::from(edge);
        let at = self.free.pop().unwrap_or_else(|| {
            self.nodes.push(None);
            self.nodes.len() - 1
        });
        self.tokens += edge.len();
        if let Some(parent) = self.nodes[parent].as_mut() {
            parent.children.insert(edge.clone(), at);
        }
        self.nodes[at] = Some(Node { parent, edge, length, children: HashMap::new(), entry: None });
        at
    }

    fn node(&self, at: usize) -> Option<&Node> {
        self.nodes.get(at).and_then(Option::as_ref)
    }

    fn child(&self, at: usize, edge: &[u32]) -> Option<usize> {
        self.node(at)?.children.get(edge).copied()
    }

    fn entry_mut(&mut self, snapshot: SnapshotId) -> Option<&mut Entry> {
        let at = *self.by_snapshot.get(&snapshot)?;
        self.nodes[at].as_mut()?.entry.as_mut()
    }
}

#[cfg(test)]
mod tests;
