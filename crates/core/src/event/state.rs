//! What a task does once it no longer runs, in the kernel's letters.

/// What a task does once it no longer runs. The letter is the kernel's, in `prev_state` and in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum TaskState {
    /// `R`: wants to run, gave the CPU away by itself (a yield), or was taken off by a throttle.
    #[cfg_attr(feature = "serde", serde(rename = "R"))]
    Runnable,
    /// `R+`: wants to run, had to give the CPU away.
    #[cfg_attr(feature = "serde", serde(rename = "R+"))]
    Preempted,
    /// `S`: waits for a wake-up. Every waiting task of the runtime.
    #[cfg_attr(feature = "serde", serde(rename = "S"))]
    Sleeping,
    /// `D`: waits and takes no signals.
    #[cfg_attr(feature = "serde", serde(rename = "D"))]
    DiskSleep,
    /// `T`: stopped by a signal; a frozen group's task.
    #[cfg_attr(feature = "serde", serde(rename = "T"))]
    Stopped,
    /// `t`: stopped by a debugger.
    #[cfg_attr(feature = "serde", serde(rename = "t"))]
    Traced,
    /// `X`: has ended.
    #[cfg_attr(feature = "serde", serde(rename = "X"))]
    Dead,
    /// `Z`: has ended, and nobody has asked how.
    #[cfg_attr(feature = "serde", serde(rename = "Z"))]
    Zombie,
    /// `P`: a parked kernel thread.
    #[cfg_attr(feature = "serde", serde(rename = "P"))]
    Parked,
    /// `I`: an idle kernel thread.
    #[cfg_attr(feature = "serde", serde(rename = "I"))]
    Idle,
}

impl TaskState {
    /// All states, for tables and tests.
    pub const ALL: [TaskState; 10] = [
        TaskState::Runnable,
        TaskState::Preempted,
        TaskState::Sleeping,
        TaskState::DiskSleep,
        TaskState::Stopped,
        TaskState::Traced,
        TaskState::Dead,
        TaskState::Zombie,
        TaskState::Parked,
        TaskState::Idle,
    ];

    /// Whether the task waits for a CPU.
    pub const fn is_runnable(self) -> bool {
        matches!(self, TaskState::Runnable | TaskState::Preempted)
    }

    /// Whether the task has ended.
    pub const fn is_over(self) -> bool {
        matches!(self, TaskState::Dead | TaskState::Zombie)
    }

    /// As the kernel writes it.
    pub const fn letters(self) -> &'static str {
        match self {
            TaskState::Runnable => "R",
            TaskState::Preempted => "R+",
            TaskState::Sleeping => "S",
            TaskState::DiskSleep => "D",
            TaskState::Stopped => "T",
            TaskState::Traced => "t",
            TaskState::Dead => "X",
            TaskState::Zombie => "Z",
            TaskState::Parked => "P",
            TaskState::Idle => "I",
        }
    }

    /// Reads what the kernel writes: one letter or several joined by `|` (the first known one counts), then `+` for
    /// preempted. Old kernels' `K`, `W` and `N` modify a sleep. `None` for anything else.
    pub fn parse(text: &str) -> Option<TaskState> {
        let (letters, preempted) = match text.strip_suffix('+') {
            Some(letters) => (letters, true),
            None => (text, false),
        };
        if preempted {
            // Whatever it was about to do, it was taken off the CPU before it did, and still wants to run.
            return (!letters.is_empty() && letters.split('|').all(is_letter))
                .then_some(TaskState::Preempted);
        }
        let mut parts = letters.split('|');
        let first = parts.next()?;
        if !parts.all(is_letter) {
            return None;
        }
        match first {
            "R" => Some(TaskState::Runnable),
            "S" => Some(TaskState::Sleeping),
            "D" | "K" | "W" | "N" => Some(TaskState::DiskSleep),
            "T" => Some(TaskState::Stopped),
            "t" => Some(TaskState::Traced),
            "X" | "x" => Some(TaskState::Dead),
            "Z" => Some(TaskState::Zombie),
            "P" => Some(TaskState::Parked),
            "I" => Some(TaskState::Idle),
            _ => None,
        }
    }
}

fn is_letter(part: &str) -> bool {
    matches!(part.as_bytes(), [letter] if letter.is_ascii_alphabetic())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_reads_what_it_writes() {
        for state in TaskState::ALL {
            assert_eq!(TaskState::parse(state.letters()), Some(state));
        }
    }

    #[test]
    fn combined_states_and_nonsense() {
        assert_eq!(TaskState::parse("D|W"), Some(TaskState::DiskSleep));
        assert_eq!(TaskState::parse("S+"), Some(TaskState::Preempted));
        for nonsense in ["", "+", "RR", "S|", "S|xy", "7", "é"] {
            assert_eq!(TaskState::parse(nonsense), None, "{nonsense}");
        }
    }
}
