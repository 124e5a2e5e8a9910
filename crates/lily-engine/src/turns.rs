//! Whose turn is next: the scheduler's policy, a state machine over numbers.
//!
//! - Prefill turns and decode steps alternate while there are both, so an answer that is being written advances by one
//!   token per chunk of anybody's prompt.
//! - Of the prompts, two kinds of turn alternate: one for the prompt with the fewest tokens left, one for the prompt
//!   that was not served for longest. A short prompt therefore starts after at most one other turn, however many long ones
//!   there are, and a stream of short ones cannot starve a long one.

/// A request that is still reading its prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Prompt {
    /// Order of arrival, unique.
    pub(crate) arrival: u64,
    /// Tokens left to compute.
    pub(crate) remaining: usize,
    /// [`Turns::count`] when it was served last, or when it was admitted.
    pub(crate) served: u64,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// A prefill turn for the prompt of this arrival.
    Prefill(u64),
    /// One token for every request that is decoding.
    Decode,
    /// There is nothing that could be done.
    Nothing,
}

/// What the last turns were.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Turns {
    prefilled_last: bool,
    shortest_last: bool,
    count: u64,
}

impl Turns {
    /// Chooses, and remembers the choice.
    pub(crate) fn next(&mut self, prompts: &[Prompt], decoding: bool) -> Action {
        let prefill_turn = !decoding || !self.prefilled_last;
        let shortest = prompts.iter().min_by_key(|p| (p.remaining, p.arrival));
        let oldest = prompts.iter().min_by_key(|p| (p.served, p.arrival));
        let prompt = if self.shortest_last { oldest } else { shortest };
        match prompt {
            Some(prompt) if prefill_turn => {
                self.prefilled_last = true;
                // A turn that was due to both owes the other nothing: beside one long prompt, a short one is next.
                let due_anyway = oldest.is_some_and(|oldest| oldest.arrival == prompt.arrival);
                self.shortest_last = !due_anyway;
                self.count += 1;
                Action::Prefill(prompt.arrival)
            }
            _ if decoding => {
                self.prefilled_last = false;
                Action::Decode
            }
            _ => Action::Nothing,
        }
    }

    /// Prefill turns so far.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(arrival: u64, remaining: usize, served: u64) -> Prompt {
        Prompt { arrival, remaining, served }
    }

    #[test]
    fn prefill_and_decode_alternate() {
        let mut turns = Turns::default();
        let one = [prompt(1, 100, 0)];
        let actions: Vec<_> = (0..4).map(|_| turns.next(&one, true)).collect();
        assert_eq!(actions, [Action::Prefill(1), Action::Decode, Action::Prefill(1), Action::Decode]);
    }

    #[test]
    fn without_a_counterpart_either_goes_on() {
        let mut turns = Turns::default();
        assert_eq!(turns.next(&[], false), Action::Nothing);
        assert_eq!([turns.next(&[], true), turns.next(&[], true)], [Action::Decode; 2]);
        let one = [prompt(1, 9, 0)];
        assert_eq!([turns.next(&one, false), turns.next(&one, false)], [Action::Prefill(1); 2]);
    }

    #[test]
    fn a_short_prompt_waits_for_at_most_one_turn_of_a_long_one() {
        for turns_before in 0..4 {
            let mut turns = Turns::default();
            let mut long = [prompt(1, 9000, 0), prompt(2, 8000, 0), prompt(3, 7000, 0)];
            for _ in 0..turns_before {
                let Action::Prefill(served) = turns.next(&long, false) else { panic!() };
                long[served as usize - 1].served = turns.count();
            }
            let with_short = [long[0], long[1], long[2], prompt(4, 20, turns.count())];
            let next = [turns.next(&with_short, false), turns.next(&with_short, false)];
            assert!(next.contains(&Action::Prefill(4)), "{next:?}");
        }
    }

    #[test]
    fn beside_a_single_long_prompt_a_short_one_is_next() {
        for turns_before in 0..4 {
            let mut turns = Turns::default();
            let mut long = prompt(1, 9000, 0);
            for _ in 0..turns_before {
                assert_eq!(turns.next(&[long], false), Action::Prefill(1));
                long.served = turns.count();
            }
            let short = prompt(2, 20, turns.count());
            assert_eq!(turns.next(&[long, short], false), Action::Prefill(2), "after {turns_before} turns");
        }
    }

    #[test]
    fn short_prompts_do_not_starve_a_long_one() {
        let mut turns = Turns::default();
        let mut long = prompt(0, 9000, 0);
        let mut long_turns = 0;
        for arrival in 1..=100 {
            let short = prompt(arrival, 20, turns.count());
            let Action::Prefill(served) = turns.next(&[long, short], false) else { panic!() };
            if served == 0 {
                long.served = turns.count();
                long_turns += 1;
            }
        }
        assert!(long_turns >= 49, "{long_turns} of 100 turns");
    }
}
