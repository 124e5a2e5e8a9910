//! What a queue has to be told that tracks nothing by itself: where commands wait for those before them, and where words stand that are
//! passed by value. Of Metal 4; decided here, so that it can be tested where no Metal is.

/// What was written down since all that stands before was waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Since {
    #[default]
    Nothing,
    Dispatches,
    Moves,
}

/// Orders the commands of one submission as [`crate::gpu::Commands`] promises: dispatches may run beside each other up to a barrier, and
/// what fills or copies runs alone. Each function says whether a wait for everything before has to stand in front.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Order(Since);

impl Order {
    /// A dispatch comes.
    pub(crate) fn dispatch(&mut self) -> bool {
        std::mem::replace(&mut self.0, Since::Dispatches) == Since::Moves
    }

    /// Bytes are filled or copied.
    pub(crate) fn moves(&mut self) -> bool {
        std::mem::replace(&mut self.0, Since::Moves) != Since::Nothing
    }

    /// What follows sees what dispatches before wrote.
    pub(crate) fn barrier(&mut self) -> bool {
        std::mem::replace(&mut self.0, Since::Nothing) != Since::Nothing
    }
}

/// Words stand at multiples of this: as far apart as constants of any Metal device have to be.
const WORDS_ALIGN: usize = 256;

/// Places of words in chunks of one size, one after the other.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Places {
    /// Bytes of all chunks that are taken.
    used: usize,
}

impl Places {
    /// The chunk and the first byte in it of so many bytes; `None` where no chunk is so long.
    pub(crate) fn next(&mut self, bytes: usize, chunk: usize) -> Option<(usize, usize)> {
        let start = self.used.next_multiple_of(WORDS_ALIGN);
        let start = if start % chunk + bytes > chunk { start.next_multiple_of(chunk) } else { start };
        if bytes > chunk {
            return None;
        }
        self.used = start + bytes;
        Some((start / chunk, start % chunk))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

    use lily_model::testing::{Spec, model_in_memory};
    use lily_model::{Forward, LogitRows};

    use super::*;
    use crate::fake::{FakeGpu, Recorded, Submission};
    use crate::tests::runner;

    /// A submission cut where it waits for everything before.
    fn cut(submission: &Submission) -> Vec<Vec<&Recorded>> {
        let (mut order, mut together) = (Order::default(), vec![Vec::new()]);
        for command in &submission.commands {
            let waits = match command {
                Recorded::Dispatch { .. } => order.dispatch(),
                Recorded::Barrier => order.barrier(),
                Recorded::Fill { .. } | Recorded::Copy { .. } => order.moves(),
            };
            if waits {
                together.push(Vec::new());
            }
            if *command != Recorded::Barrier {
                together.last_mut().unwrap().push(command);
            }
        }
        together
    }

    /// Of whole prompts, steps, copies and growing pools: every barrier that was asked for is a wait, what moves bytes is alone, and there
    /// are no other waits.
    #[test]
    fn commands_wait_where_they_would_be_tracked() {
        let gpu = FakeGpu::new();
        let model = model_in_memory(&Spec::tiny());
        let mut runner = runner(&gpu, &model);
        let first = runner.open().unwrap();
        runner.prefill(first, &[3; 100], LogitRows::None).unwrap();
        let kept = runner.snapshot(first).unwrap();
        let second = runner.restore(kept).unwrap();
        runner.prefill(second, &[1; 70], LogitRows::Last).unwrap();
        runner.decode(&[(first, 1), (second, 2)]).unwrap();
        let submissions = gpu.take_submissions();
        let (mut barriers, mut moves, mut cuts) = (0, 0, 0);
        for submission in &submissions {
            let cut = cut(submission);
            for together in &cut {
                let is_move = |command: &&&Recorded| !matches!(command, Recorded::Dispatch { .. });
                let moved = together.iter().filter(is_move).count();
                assert!(moved == 0 || together.len() == 1, "{together:?}");
                moves += moved;
            }
            let asked = submission.commands.split(|command| *command == Recorded::Barrier);
            for asked in asked.filter(|asked| !asked.is_empty()) {
                let begins = |together: &Vec<&Recorded>| std::ptr::eq(together[0], &asked[0]);
                assert!(cut.iter().any(begins), "a barrier that is no wait: {:?}", asked[0]);
            }
            barriers += submission.commands.iter().filter(|command| **command == Recorded::Barrier).count();
            cuts += cut.len() - 1;
        }
        assert!(barriers > 50 && moves > 3 && cuts <= barriers + 2 * moves, "{barriers}, {moves}, {cuts}");
    }

    #[test]
    fn words_stand_apart_and_inside_of_their_chunks() {
        let mut places = Places::default();
        let sizes = [4, 100, 256, 1, 600, 1024, 8, 512, 512];
        let mut taken = Vec::new();
        for bytes in sizes {
            let (chunk, start) = places.next(bytes, 1024).unwrap();
            assert!(start % WORDS_ALIGN == 0 && start + bytes <= 1024, "{start} + {bytes}");
            taken.push((chunk * 1024 + start, bytes));
        }
        assert!(taken.windows(2).all(|two| two[0].0 + two[0].1 <= two[1].0), "{taken:?}");
        assert_eq!(places.next(1025, 1024), None);
    }
}
