//! Byte-pair encoding of one piece of text (Sennrich et al. 2016).
//!
//! A piece starts as one token a byte. Again and again the neighbours whose merge stands first in the list are joined,
//! the leftmost of equal ones first, until no neighbours are in the list. The `tokenizers` crate does the same and is
//! what the tests compare with. This one exists for pieces of a megabyte, where memory decides (measured by
//! `examples/encode_speed.rs`): no token's name is ever copied, and long pieces are encoded in blocks that fit the
//! processor's first cache.
//!
//! Blocks give the same ids because of a property of the greedy order: a list of tokens is the encoding of its text if
//! and only if each two neighbours are the encoding of theirs. (No merge crosses a border between tokens: the first one
//! that did would be made, in the same order, when only the two tokens beside that border are encoded.) So two
//! encodings can be put together wherever the tokens at the border are the encoding of their text; elsewhere the text
//! around the border is encoded again, wider and wider, until that holds on both sides.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

/// Two neighbours, as one number.
fn pair(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

/// Where a merge stands in the list, and the token it makes.
#[derive(Clone, Copy, Debug)]
struct Merge {
    rank: u32,
    token: u32,
}

/// Pieces of at most this many bytes look at all neighbours for each merge: with so few that is faster than a heap.
const SHORT: usize = 32;
/// Bytes that are encoded together. Links and heap take 20 bytes for each, together well below 32 KiB.
const BLOCK: usize = 1024;
/// Tokens on each side of a border between blocks that are encoded again at first.
const OVERLAP: usize = 4;
/// No neighbour on that side, or no merge.
const NONE: u32 = u32::MAX;

/// The list of merges.
pub(super) struct Merges {
    table: HashMap<u64, Merge, BuildHasherDefault<PairHasher>>,
    /// The merges of two bytes by their values: half of all questions are about these.
    byte_pairs: Vec<Merge>,
    /// The token of each byte.
    bytes: [u32; 256],
    /// Bytes of each token that merges make.
    lengths: Vec<u32>,
}

impl Merges {
    /// `merges` in the order of the file: left, right, and the token they make. A pair that is there twice counts as its
    /// last occurrence, as in the library. `lengths` are the bytes of every token by id.
    pub(super) fn new(
        bytes: [u32; 256],
        lengths: Vec<u32>,
        merges: impl ExactSizeIterator<Item = (u32, u32, u32)>,
    ) -> Self {
        let mut table = HashMap::with_capacity_and_hasher(merges.len(), BuildHasherDefault::default());
        for (rank, (left, right, token)) in (0..).zip(merges) {
            table.insert(pair(left, right), Merge { rank, token });
        }
        let of_two = |both: usize| table.get(&pair(bytes[both >> 8], bytes[both & 0xFF])).copied();
        let byte_pairs = (0..1 << 16).map(|both| of_two(both).unwrap_or(Merge::NONE)).collect();
        Merges { table, byte_pairs, bytes, lengths }
    }

    /// Appends the ids of a piece.
    pub(super) fn encode(&self, piece: &[u8], ids: &mut Vec<u32>) {
        let start = ids.len();
        let mut end = 0;
        for block in piece.chunks(BLOCK) {
            let border = ids.len();
            end += block.len();
            self.encode_block(block, ids);
            if border > start {
                self.mend(&piece[..end], border - start, start, ids);
            }
        }
    }

    /// Makes one encoding of two: `ids[start..]` are those of `text`, in two parts that meet before token `border`.
    fn mend(&self, text: &[u8], border: usize, start: usize, ids: &mut Vec<u32>) {
        let count = ids.len() - start;
        let (mut left, mut right) = (OVERLAP.min(border), OVERLAP.min(count - border));
        let bytes_of =
            |tokens: &[u32]| tokens.iter().map(|&id| self.lengths[id as usize] as usize).sum::<usize>();
        let mut window = Vec::new();
        loop {
            let tokens = &ids[start..];
            let (from, to) = (border - left, border + right);
            let (before, within) = (&tokens[..from], bytes_of(&tokens[from..to]));
            let end = text.len() - bytes_of(&tokens[to..]);
            let within = &text[end - within..end];
            window.clear();
            self.encode_block(within, &mut window);
            let (Some(&first), Some(&last)) = (window.first(), window.last()) else { return };
            let left_holds =
                before.last().is_none_or(|&id| self.are_neighbours(text, end - within.len(), id, first));
            let right_holds = tokens.get(to).is_none_or(|&id| self.are_neighbours(text, end, last, id));
            if left_holds && right_holds {
                ids.splice(start + from..start + to, window);
                return;
            }
            if !left_holds {
                left = (left * 2).min(border);
            }
            if !right_holds {
                right = (right * 2).min(count - border);
            }
        }
    }

    /// Whether the two tokens that meet at `border` are the encoding of their text.
    fn are_neighbours(&self, text: &[u8], border: usize, left: u32, right: u32) -> bool {
        let (before, after) = (self.lengths[left as usize] as usize, self.lengths[right as usize] as usize);
        let mut ids = Vec::with_capacity(before + after);
        self.encode_block(&text[border - before..border + after], &mut ids);
        ids == [left, right]
    }

    fn encode_block(&self, block: &[u8], ids: &mut Vec<u32>) {
        if block.len() <= SHORT {
            self.encode_short(block, ids);
        } else {
            self.encode_with_heap(block, ids);
        }
    }

    fn find(&self, left: u32, right: u32) -> Merge {
        self.table.get(&pair(left, right)).copied().unwrap_or(Merge::NONE)
    }

    fn find_bytes(&self, left: u8, right: u8) -> Merge {
        self.byte_pairs[usize::from(left) << 8 | usize::from(right)]
    }

    /// Merges in place at the end of `ids`.
    fn encode_short(&self, block: &[u8], ids: &mut Vec<u32>) {
        let start = ids.len();
        ids.extend(block.iter().map(|&byte| self.bytes[usize::from(byte)]));
        // candidates[i] joins tokens i and i + 1 of the block.
        let mut candidates = [Merge::NONE; SHORT];
        for (candidate, two) in candidates.iter_mut().zip(block.windows(2)) {
            *candidate = self.find_bytes(two[0], two[1]);
        }
        let mut count = block.len();
        while count > 1 {
            let first = candidates[..count - 1].iter().enumerate().min_by_key(|(_, merge)| merge.rank);
            let Some((at, &Merge { token, .. })) = first.filter(|(_, merge)| merge.rank != NONE) else {
                break;
            };
            ids[start + at] = token;
            ids.remove(start + at + 1);
            candidates.copy_within(at + 1..count - 1, at);
            count -= 1;
            if at > 0 {
                candidates[at - 1] = self.find(ids[start + at - 1], token);
            }
            if at + 1 < count {
                candidates[at] = self.find(token, ids[start + at + 1]);
            }
        }
    }

    /// A heap of candidates over a linked list of tokens.
    fn encode_with_heap(&self, block: &[u8], ids: &mut Vec<u32>) {
        let mut chain = Chain::new(block.iter().map(|&byte| self.bytes[usize::from(byte)]));
        let seeds = (0..).zip(block.windows(2)).map(|(at, two)| (self.find_bytes(two[0], two[1]).rank, at));
        let seeds = seeds.filter(|(rank, _)| *rank != NONE).map(Reverse);
        let mut heap: BinaryHeap<Reverse<(u32, u32)>> = seeds.collect::<Vec<_>>().into();
        while let Some(Reverse((rank, at))) = heap.pop() {
            let Some(right) = chain.right_of(at) else { continue };
            // The candidate is stale if either of its tokens has changed since: then the merge is another one.
            let merge = self.find(chain.token(at), chain.token(right));
            if merge.rank != rank {
                continue;
            }
            chain.join(at, right, merge.token);
            for left in [chain.left_of(at), Some(at)].into_iter().flatten() {
                if let Some(right) = chain.right_of(left) {
                    let rank = self.find(chain.token(left), chain.token(right)).rank;
                    if rank != NONE {
                        heap.push(Reverse((rank, left)));
                    }
                }
            }
        }
        chain.append_to(ids);
    }
}

impl Merge {
    /// Comes after every merge.
    const NONE: Merge = Merge { rank: NONE, token: 0 };
}

/// Tokens in a row, each knowing its neighbours.
struct Chain {
    links: Vec<Link>,
}

#[derive(Clone, Copy)]
struct Link {
    /// [`NONE`] once it was joined to its left neighbour.
    token: u32,
    left: u32,
    right: u32,
}

impl Chain {
    fn new(tokens: impl ExactSizeIterator<Item = u32>) -> Self {
        let last = tokens.len().saturating_sub(1);
        let link = |(at, token): (usize, u32)| Link {
            token,
            left: if at == 0 { NONE } else { at as u32 - 1 },
            right: if at == last { NONE } else { at as u32 + 1 },
        };
        Chain { links: tokens.enumerate().map(link).collect() }
    }

    fn token(&self, at: u32) -> u32 {
        self.links[at as usize].token
    }

    fn left_of(&self, at: u32) -> Option<u32> {
        Some(self.links[at as usize].left).filter(|&at| at != NONE)
    }

    /// `None` too for a token that is gone.
    fn right_of(&self, at: u32) -> Option<u32> {
        Some(self.links[at as usize].right).filter(|&at| at != NONE)
    }

    fn join(&mut self, left: u32, right: u32, token: u32) {
        let beyond = self.links[right as usize].right;
        self.links[right as usize] = Link { token: NONE, left: NONE, right: NONE };
        self.links[left as usize] = Link { token, right: beyond, ..self.links[left as usize] };
        if beyond != NONE {
            self.links[beyond as usize].left = left;
        }
    }

    fn append_to(&self, ids: &mut Vec<u32>) {
        ids.extend(self.links.iter().map(|link| link.token).filter(|&token| token != NONE));
    }
}

/// Pairs of ids need mixing, not protection: they come from a file that is trusted as much as the text is.
#[derive(Default)]
struct PairHasher(u64);

impl Hasher for PairHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        // The table takes its place from the low bits and its tag from the high ones: fold a product to fill both.
        let product = u128::from(self.0 ^ value) * 0x9E37_79B9_7F4A_7C15;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A vocabulary of the bytes and of random joins over three letters, deep enough for tokens of a hundred bytes.
    fn merges(joins: &[(u32, u32)]) -> Merges {
        let bytes = std::array::from_fn(|byte| byte as u32);
        let (mut lengths, mut list) = (vec![1; 256], Vec::new());
        let mut known = vec![u32::from(b'a'), u32::from(b'b'), u32::from(b'c')];
        for &(left, right) in joins {
            // Recent tokens more often, or all would be short.
            let pick = |n: u32| known[known.len() - 1 - (n as usize % known.len().min(8))];
            let (left, right, token) = (pick(left), pick(right), lengths.len() as u32);
            let length = lengths[left as usize] + lengths[right as usize];
            if length > 100 || list.iter().any(|&(l, r, _)| (l, r) == (left, right)) {
                continue;
            }
            lengths.push(length);
            list.push((left, right, token));
            known.push(token);
        }
        Merges::new(bytes, lengths, list.into_iter())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        /// Borders between blocks do not show, however long the tokens beside them are.
        #[test]
        fn blocks_equal_the_whole(
            joins in prop::collection::vec((any::<u32>(), any::<u32>()), 1..40),
            unit in "[abc]{1,12}",
            noise in "[abc]{0,40}",
            count in 100usize..400,
        ) {
            let merges = merges(&joins);
            let text = format!("{noise}{}{noise}", unit.repeat(count));
            let (mut blocks, mut whole) = (vec![7], vec![7]);
            merges.encode(text.as_bytes(), &mut blocks);
            merges.encode_with_heap(text.as_bytes(), &mut whole);
            prop_assert_eq!(blocks, whole);
        }

        #[test]
        fn short_pieces_equal_the_heap(
            joins in prop::collection::vec((any::<u32>(), any::<u32>()), 1..40),
            text in "[abcd]{1,32}",
        ) {
            let merges = merges(&joins);
            let (mut short, mut heap) = (vec![7], vec![7]);
            merges.encode_short(text.as_bytes(), &mut short);
            merges.encode_with_heap(text.as_bytes(), &mut heap);
            prop_assert_eq!(short, heap);
        }
    }
}
