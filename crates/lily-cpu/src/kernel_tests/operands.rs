//! Operands of one launch in memory of their own: outputs between guard words, packed weights at odd addresses, caches in
//! pages that are nowhere near each other.

use std::collections::BTreeMap;

use lily_kernels::{Access, Kernel};

use super::ISAS;
use crate::Precision;
use crate::kernels;
use crate::memory::{Args, Block, Bound};
use crate::pool::Pool;
use crate::rounded::Rows;
use crate::simd::{Isa, Loops};
use crate::state::{PAGE_TOKENS, PageTable};

/// Stands around operands, and in outputs before they are written: a NaN, so that reading it shows.
const GUARD: u32 = 0x7fa5_5aa5;
const GUARD_WORDS: usize = 24;

/// The numbers of threads that partitions into tasks are made for.
const PARTITIONS: [usize; 5] = [1, 2, 3, 5, 40];

/// One operand.
#[derive(Clone)]
enum Operand {
    /// f32 or u32 between guards.
    Words(Vec<u32>),
    /// Bytes of a tensor behind one other byte: allocators align, so these start at an odd address.
    Bytes(Vec<u8>),
    /// Keys or values.
    Paged(Paged),
}

/// Operands in the order of a kernel's bindings.
#[derive(Clone, Default)]
pub(super) struct Operands(Vec<Operand>);

impl Operands {
    fn words(mut self, words: impl Iterator<Item = u32>) -> Self {
        let guards = || std::iter::repeat_n(GUARD, GUARD_WORDS);
        self.0.push(Operand::Words(guards().chain(words).chain(guards()).collect()));
        self
    }

    /// Values that the kernel reads, or reads and writes.
    pub(super) fn f32(self, values: &[f32]) -> Self {
        self.words(values.iter().map(|v| v.to_bits()))
    }

    pub(super) fn u32(self, values: &[u32]) -> Self {
        self.words(values.iter().copied())
    }

    /// `len` words that the kernel writes.
    pub(super) fn out(self, len: usize) -> Self {
        self.words(std::iter::repeat_n(GUARD, len))
    }

    /// Bytes of a tensor of the checkpoint.
    pub(super) fn tensor(mut self, bytes: &[u8]) -> Self {
        self.0.push(Operand::Bytes([&[0xa5], bytes].concat()));
        self
    }

    pub(super) fn paged(mut self, cache: Paged) -> Self {
        self.0.push(Operand::Paged(cache));
        self
    }

    pub(super) fn got_f32(&self, i: usize) -> Vec<f32> {
        self.got_u32(i).iter().map(|w| f32::from_bits(*w)).collect()
    }

    pub(super) fn got_u32(&self, i: usize) -> &[u32] {
        match &self.0[i] {
            Operand::Words(words) => &words[GUARD_WORDS..words.len() - GUARD_WORDS],
            _ => panic!("operand {i} is not words"),
        }
    }

    pub(super) fn got_paged(&self, i: usize) -> &Paged {
        match &self.0[i] {
            Operand::Paged(cache) => cache,
            _ => panic!("operand {i} is not paged"),
        }
    }

    /// Runs the kernel on a copy of the operands, as tasks for `threads` threads, the last first if `reverse`.
    fn run(
        &self,
        kernel: &Kernel,
        (precision, isa): (Precision, Isa),
        threads: usize,
        pool: &mut Pool,
        reverse: bool,
    ) -> Operands {
        let loops = Loops::new(isa).unwrap();
        let mut after = self.clone();
        let tables: Vec<Vec<*mut f32>> = after.0.iter_mut().map(Operand::page_table).collect();
        let bound = after.0.iter_mut().zip(&tables).map(|(operand, table)| operand.bind(table));
        let bound: Vec<Bound<'_>> = bound.collect();
        let mut memory = Block::default();
        let rounded = kernels::rounds(kernel, true).filter(|_| precision == Precision::Fast);
        let rounded = rounded.map(|(rows, shape)| {
            memory.grow(rows * shape.bytes()).unwrap();
            // SAFETY: the block is aligned and long enough, and lives until the run has ended.
            let rounded = unsafe { Rows::new(memory.as_mut_ptr(), rows, shape) };
            let args = Args::new(vec![bound[kernels::ROUNDED_OPERAND]], None);
            // SAFETY: nobody else is there.
            (0..rows).for_each(|row| unsafe { kernels::round(&loops, args.f32(0), rounded, row) });
            rounded
        });
        let args = Args::new(bound, rounded);
        let tasks = kernels::tasks(kernel, &args, threads);
        let done = pool.run(tasks, &|i, scratch| {
            let i = if reverse { tasks - 1 - i } else { i };
            kernels::run(kernel, &args, &loops, i, threads, scratch);
        });
        drop(args);
        let run = format!("{kernel:?} on {}, {precision:?}, {threads} threads", isa.name());
        assert!(done, "a task panicked: {run}");
        for (i, (before, after)) in self.0.iter().zip(&after.0).enumerate() {
            let operand = kernel.operand_of(i);
            if operand.access == Access::Read {
                assert!(before.same(after), "{} was written: {run}", operand.name);
            }
            assert!(after.guarded(), "written outside of {}: {run}", operand.name);
        }
        after
    }

    /// Runs the kernel on every instruction set, with every partition into tasks; calls `check` with what each
    /// instruction set made, once it is known that partitions make no difference.
    pub(super) fn run_everywhere(&self, kernel: &Kernel, check: impl FnMut(&Operands)) {
        self.run_everywhere_as(Precision::Exact, kernel, check);
    }

    /// The same for a precision. With integers, instruction sets whose multiply-adds round once make the same bits.
    pub(super) fn run_everywhere_as(
        &self,
        precision: Precision,
        kernel: &Kernel,
        mut check: impl FnMut(&Operands),
    ) {
        assert_eq!(self.0.len(), kernel.binding_count(), "{kernel:?}");
        let mut pool = Pool::new(2, false);
        let mut fused: Option<Operands> = None;
        for isa in ISAS.iter().copied() {
            let way = (precision, isa);
            let first = self.run(kernel, way, PARTITIONS[0], &mut pool, false);
            for (i, threads) in PARTITIONS.into_iter().enumerate().skip(1) {
                let other = self.run(kernel, way, threads, &mut pool, i % 2 == 1);
                assert!(first.same(&other), "{kernel:?} on {}: {threads} threads change bits", isa.name());
            }
            check(&first);
            if precision == Precision::Fast && isa != Isa::Portable {
                let same = fused.get_or_insert_with(|| first.clone()).same(&first);
                assert!(same, "{kernel:?}: {} makes other bits", isa.name());
            }
        }
    }

    /// Bit for bit; guards included.
    fn same(&self, other: &Operands) -> bool {
        self.0.iter().zip(&other.0).all(|(a, b)| a.same(b))
    }
}

impl Operand {
    /// Bit for bit; guards included.
    fn same(&self, other: &Operand) -> bool {
        match (self, other) {
            (Operand::Words(a), Operand::Words(b)) => a == b,
            (Operand::Bytes(a), Operand::Bytes(b)) => a == b,
            (Operand::Paged(a), Operand::Paged(b)) => a.pages == b.pages,
            _ => false,
        }
    }

    fn guarded(&self) -> bool {
        match self {
            Operand::Words(words) => is_guarded(words, GUARD_WORDS),
            Operand::Bytes(_) => true,
            Operand::Paged(cache) => {
                cache.pages.values().all(|page| is_guarded(page, GUARD_WORDS))
                    && cache.trap.iter().all(|word| *word == GUARD)
            }
        }
    }

    fn page_table(&mut self) -> Vec<*mut f32> {
        match self {
            Operand::Paged(cache) => cache.table(),
            _ => Vec::new(),
        }
    }

    fn bind<'a>(&'a mut self, table: &'a [*mut f32]) -> Bound<'a> {
        match self {
            Operand::Words(words) => {
                let len = words.len() - 2 * GUARD_WORDS;
                Bound::Mutable(words[GUARD_WORDS..].as_mut_ptr().cast(), 4 * len)
            }
            Operand::Bytes(memory) => Bound::Constant(&memory[1..]),
            Operand::Paged(cache) => Bound::Paged(PageTable::new(table, GUARD_WORDS, cache.head_dim)),
        }
    }
}

fn is_guarded(words: &[u32], guard: usize) -> bool {
    words[..guard].iter().chain(&words[words.len() - guard..]).all(|word| *word == GUARD)
}

/// The keys or values of a sequence: some pages of a context, each an allocation of its own. Touching another page reads
/// NaN, and writing one is noticed.
#[derive(Clone, PartialEq)]
pub(super) struct Paged {
    heads: usize,
    head_dim: usize,
    /// Pages of the context.
    count: usize,
    pages: BTreeMap<usize, Vec<u32>>,
    /// Stands in for all other pages.
    trap: Vec<u32>,
}

impl Paged {
    /// The pages that hold these positions; every value is the guard.
    pub(super) fn new(
        heads: usize,
        head_dim: usize,
        context: usize,
        positions: impl Iterator<Item = usize>,
    ) -> Self {
        let page = vec![GUARD; heads * PAGE_TOKENS * head_dim + 2 * GUARD_WORDS];
        let pages = positions.map(|position| (position / PAGE_TOKENS, page.clone())).collect();
        Paged { heads, head_dim, count: context.div_ceil(PAGE_TOKENS), pages, trap: page }
    }

    fn table(&mut self) -> Vec<*mut f32> {
        let trap = self.trap.as_mut_ptr().cast();
        let page = |i: usize| self.pages.get_mut(&i).map_or(trap, |page| page.as_mut_ptr().cast());
        (0..self.count).map(page).collect()
    }

    /// Where the token at `position` stands in its page, of one head.
    fn place(&self, position: usize, head: usize) -> usize {
        GUARD_WORDS + (head * PAGE_TOKENS + position % PAGE_TOKENS) * self.head_dim
    }

    /// Sets all heads of a token.
    pub(super) fn set(&mut self, position: usize, values: &[f32]) {
        for (head, values) in values.chunks(self.head_dim).enumerate() {
            let place = self.place(position, head);
            let page = self.pages.get_mut(&(position / PAGE_TOKENS)).unwrap();
            for (word, value) in page[place..].iter_mut().zip(values) {
                *word = value.to_bits();
            }
        }
    }

    /// All heads of a token.
    pub(super) fn get(&self, position: usize) -> Vec<f32> {
        let page = &self.pages[&(position / PAGE_TOKENS)];
        let head = |head| &page[self.place(position, head)..][..self.head_dim];
        (0..self.heads).flat_map(head).map(|word| f32::from_bits(*word)).collect()
    }
}
