//! The screen: the table of groups, again and again, and keys.
//!
//! [`State`] is what is shown and what keys do to it, without a terminal and without a process, so that tests can look at it; [`run`]
//! connects it with both. The terminal is restored however it ends: `ratatui` does it on a panic, [`run`] otherwise, after `SIGTERM` and
//! `SIGHUP` too; in raw mode Ctrl-C is a key like any other.

use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use quotient_attach::{Change, Client, ClientError, Hello, Request, Snapshot};
use ratatui::DefaultTerminal;
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Row as TableRow, Table, TableState};

use super::TopArguments;
use super::printable::printable;
use super::rows::{HEAD, Row, Sort, rows};
use crate::convert::input::interruption;
use crate::failure::Failure;

/// How late a signal is noticed at most. Unit: time. Default 100 ms.
const SIGNAL_WITHIN: Duration = Duration::from_millis(100);
/// Longest text that is typed. Unit: characters. Default 256.
const TYPED_MAX: usize = 256;

/// What a typed text is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Filter,
    Weight,
    Max,
}

/// What a key asks for.
#[derive(Debug, PartialEq)]
enum Wish {
    Nothing,
    End,
    Change(Change),
}

/// What is shown.
struct State {
    hello: Hello,
    before: Snapshot,
    after: Snapshot,
    sort: Sort,
    filter: String,
    /// What is being typed.
    typed: Option<(Field, String)>,
    /// The path of the chosen group: groups change places while somebody types.
    chosen: Option<String>,
    message: String,
    rows: Vec<Row>,
}

/// Shows the groups until `q` or Ctrl-C is pressed.
///
/// # Errors
/// `Usage` without a terminal; as [`super::run`].
pub fn run(mut client: Client, arguments: &TopArguments) -> Result<(), Failure> {
    let first = arguments.link.snapshot(&mut client)?;
    let mut state = State::new(client.hello().clone(), first, arguments);
    // Before the terminal is changed: from here on a signal ends the loop and not the process.
    let told = interruption()?;
    let mut terminal = ratatui::try_init()
        .map_err(|error| Failure::Usage(format!("this is no terminal, give --once: {error}")))?;
    let shown = show(&mut state, &mut client, &mut terminal, (arguments, &told));
    ratatui::restore();
    shown
}

fn show(
    state: &mut State,
    client: &mut Client,
    terminal: &mut DefaultTerminal,
    (arguments, told): (&TopArguments, &AtomicBool),
) -> Result<(), Failure> {
    let failed = || Failure::during("the terminal is gone");
    let interval = Duration::from_millis(arguments.interval_ms);
    // Asked while it is there: one that has gone is none.
    let keys_from_input = io::stdin().is_terminal();
    let mut due = Instant::now() + interval;
    while !told.load(Ordering::Relaxed) {
        terminal.draw(|frame| state.draw(frame)).map_err(failed())?;
        let mut ready = false;
        while !ready && Instant::now() < due && !told.load(Ordering::Relaxed) {
            let pause = due
                .saturating_duration_since(Instant::now())
                .min(SIGNAL_WITHIN);
            wait(pause, keys_from_input).map_err(failed())?;
            ready = event::poll(Duration::ZERO).map_err(failed())?;
        }
        if ready {
            if let Event::Key(key) = event::read().map_err(failed())?
                && key.kind == KeyEventKind::Press
            {
                match state.press(key) {
                    Wish::Nothing => {}
                    Wish::End => return Ok(()),
                    Wish::Change(change) => {
                        state.message = match client.ask(&Request::Set(change)) {
                            Ok(_) => "done".to_owned(),
                            Err(ClientError::Refused(reason)) => printable(&reason),
                            Err(error) => return Err(arguments.link.failure(error)),
                        };
                    }
                }
            }
        } else if Instant::now() >= due {
            due = Instant::now() + interval;
            let next = arguments.link.snapshot(client)?;
            state.before = std::mem::replace(&mut state.after, next);
            state.refresh();
        }
    }
    Ok(())
}

/// Waits for a key or for the end of `pause`; signals cut it short. Standard input is the terminal if `keys_from_input`; else keys come from
/// the controlling terminal, whose end is told by a signal.
///
/// Not by `event::poll`: it reads on and on from a terminal that has gone, and never returns, so that a signal is never
/// looked at either.
///
/// # Errors
/// When the terminal has gone, or the system refuses to wait.
#[cfg(unix)]
fn wait(pause: Duration, keys_from_input: bool) -> io::Result<()> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    if !keys_from_input {
        return event::poll(pause).map(drop);
    }
    let input = io::stdin();
    let mut looked_at = [PollFd::new(&input, PollFlags::IN)];
    let pause = Timespec::try_from(pause).map_err(io::Error::other)?;
    match poll(&mut looked_at, Some(&pause)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let gone = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
    if looked_at[0].revents().intersects(gone) {
        return Err(io::ErrorKind::BrokenPipe.into());
    }
    Ok(())
}

/// As on other systems.
#[cfg(not(unix))]
fn wait(pause: Duration, _keys_from_input: bool) -> io::Result<()> {
    event::poll(pause).map(drop)
}

impl State {
    fn new(hello: Hello, first: Snapshot, arguments: &TopArguments) -> Self {
        let mut state = Self {
            hello,
            before: first.clone(),
            after: first,
            sort: arguments.sort,
            filter: arguments.filter.clone(),
            typed: None,
            chosen: None,
            message: String::new(),
            rows: Vec::new(),
        };
        state.refresh();
        state
    }

    /// Makes the rows anew; a group that is gone is not chosen any more.
    fn refresh(&mut self) {
        self.rows = rows(&self.before, &self.after, self.sort, &self.filter);
        if self.index().is_none() {
            self.chosen = self.rows.first().map(|row| row.path.clone());
        }
    }

    /// Where the chosen group is.
    fn index(&self) -> Option<usize> {
        let chosen = self.chosen.as_ref()?;
        self.rows.iter().position(|row| row.path == *chosen)
    }

    fn choose(&mut self, index: usize) {
        let last = self.rows.len().saturating_sub(1);
        self.chosen = self.rows.get(index.min(last)).map(|row| row.path.clone());
    }

    fn press(&mut self, key: KeyEvent) -> Wish {
        if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) {
            return Wish::End;
        }
        if let Some((field, mut text)) = self.typed.take() {
            match key.code {
                KeyCode::Enter => return self.enter(field, &text),
                KeyCode::Esc => return Wish::Nothing,
                KeyCode::Backspace => drop(text.pop()),
                KeyCode::Char(letter) if text.chars().count() < TYPED_MAX => text.push(letter),
                _ => {}
            }
            self.typed = Some((field, text));
            return Wish::Nothing;
        }
        self.message.clear();
        let index = self.index().unwrap_or(0);
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return Wish::End,
            KeyCode::Char('s') => {
                self.sort = self.sort.next();
                self.refresh();
            }
            KeyCode::Char('/') => self.typed = Some((Field::Filter, String::new())),
            KeyCode::Char('w' | 'm') if !self.hello.changes => {
                self.message = "this process allows no changes".to_owned();
            }
            KeyCode::Char('w') => self.typed = Some((Field::Weight, String::new())),
            KeyCode::Char('m') => self.typed = Some((Field::Max, String::new())),
            KeyCode::Down | KeyCode::Char('j') => self.choose(index.saturating_add(1)),
            KeyCode::Up | KeyCode::Char('k') => self.choose(index.saturating_sub(1)),
            KeyCode::Home => self.choose(0),
            KeyCode::End => self.choose(usize::MAX),
            _ => {}
        }
        Wish::Nothing
    }

    /// A text was typed to its end.
    fn enter(&mut self, field: Field, text: &str) -> Wish {
        if field == Field::Filter {
            text.clone_into(&mut self.filter);
            self.refresh();
            return Wish::Nothing;
        }
        let Some(group) = self.chosen.clone() else {
            "no group is chosen".clone_into(&mut self.message);
            return Wish::Nothing;
        };
        let mut change = Change {
            group,
            ..Change::default()
        };
        if field == Field::Weight {
            let Ok(weight) = text.parse() else {
                self.message = format!("{text:?} is no weight, allowed are 1 to 10000");
                return Wish::Nothing;
            };
            change.weight = Some(weight);
        } else {
            change.max = Some(text.to_owned());
        }
        Wish::Change(change)
    }

    fn draw(&self, frame: &mut Frame<'_>) {
        let parts = [1, 0, 1].map(|lines| match lines {
            0 => Constraint::Min(1),
            lines => Constraint::Length(lines),
        });
        let [head, body, foot] = Layout::vertical(parts).areas(frame.area());
        let groups = (self.after.groups.len() as u64).saturating_add(self.after.more);
        let title = format!(
            "quotient top  pid {}  {} virtual CPUs  {groups} groups  {} tasks outside  sort {:?}",
            self.hello.pid, self.hello.vcpus, self.after.foreign_tasks, self.sort
        );
        frame.render_widget(Line::from(title), head);
        let widths = [8, 7, 7, 10, 9, 9, 6].map(Constraint::Length);
        let rest = [Constraint::Fill(1), Constraint::Fill(1)];
        let shown = self.rows.iter().map(|row| TableRow::new(row.cells()));
        let table = Table::new(shown, widths.into_iter().chain(rest))
            .header(TableRow::new(HEAD).style(Style::new().add_modifier(Modifier::BOLD)))
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
        let mut place = TableState::default().with_selected(self.index());
        frame.render_stateful_widget(table, body, &mut place);
        let line = match &self.typed {
            Some((Field::Filter, text)) => format!("filter: {text}_"),
            Some((Field::Weight, text)) => format!("weight: {text}_"),
            Some((Field::Max, text)) => format!("limit (50ms/100ms, max): {text}_"),
            None if self.message.is_empty() => {
                "q end  s sort  / filter  up, down choose  w weight  m limit".to_owned()
            }
            None => self.message.clone(),
        };
        frame.render_widget(Line::from(line), foot);
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    #[derive(Parser)]
    struct Parsed {
        #[command(flatten)]
        top: TopArguments,
    }

    fn state(changes: bool) -> State {
        let hello = format!(r#"{{"quotient":1,"pid":7,"vcpus":2,"changes":{changes}}}"#);
        let groups = r#"{"at_ns":1,"groups":[{"path":""},{"path":"a","weight":5},{"path":"b\u001b[2J","weight":9}]}"#;
        let parsed = Parsed::try_parse_from(["top", "7", "--sort", "path"]).expect("arguments");
        let hello = serde_json::from_str(&hello).expect("a hello");
        let groups = serde_json::from_str(groups).expect("groups");
        State::new(hello, groups, &parsed.top)
    }

    fn shown(state: &State) -> String {
        let mut terminal = Terminal::new(TestBackend::new(100, 8)).expect("a terminal");
        let drawn = terminal.draw(|frame| state.draw(frame));
        let cells = drawn.expect("no terminal to fail").buffer.content();
        let lines = cells.chunks(100).map(|line| {
            let line: String = line.iter().map(|cell| cell.symbol()).collect();
            line.trim_end().to_owned() + "\n"
        });
        lines.collect()
    }

    fn press(state: &mut State, keys: &[KeyCode]) -> Wish {
        let press = |wish: Wish, key: &KeyCode| match wish {
            Wish::Nothing => state.press(KeyEvent::from(*key)),
            wish => wish,
        };
        keys.iter().fold(Wish::Nothing, press)
    }

    fn typed(text: &str) -> Vec<KeyCode> {
        text.chars()
            .map(KeyCode::Char)
            .chain([KeyCode::Enter])
            .collect()
    }

    #[test]
    fn groups_are_sorted_and_filtered_and_harmless() {
        let mut state = state(false);
        let text = shown(&state);
        let place =
            |text: &str, what: &str| text.find(what).unwrap_or_else(|| panic!("{what}: {text}"));
        assert!(place(&text, "/a") < place(&text, "/b?[2J"), "{text}");
        assert!(
            text.starts_with("quotient top  pid 7  2 virtual CPUs  3 groups"),
            "{text}"
        );
        press(&mut state, &[KeyCode::Char('s')]);
        let text = shown(&state);
        assert!(place(&text, "/b?[2J") < place(&text, "/a"), "{text}");
        press(&mut state, &typed("/a"));
        let text = shown(&state);
        assert!(text.contains("/a") && !text.contains("/b"), "{text}");
    }

    /// Rows change places while somebody types a weight: it is for the group, not for the line.
    #[test]
    fn a_change_is_for_the_group_that_was_chosen() {
        let mut state = state(true);
        press(&mut state, &[KeyCode::Down, KeyCode::Char('w')]);
        let next = r#"{"at_ns":9,"groups":[{"path":"0"},{"path":"a","weight":5}]}"#;
        state.after = serde_json::from_str(next).expect("groups");
        state.refresh();
        let Wish::Change(change) = press(&mut state, &typed("300")) else {
            panic!("no change")
        };
        assert_eq!((change.group.as_str(), change.weight), ("a", Some(300)));
        let Wish::Change(change) = press(&mut state, &typed("mmax")) else {
            panic!("no change")
        };
        assert_eq!((change.weight, change.max.as_deref()), (None, Some("max")));
        assert_eq!(press(&mut state, &typed("wmuch")), Wish::Nothing);
        assert!(shown(&state).contains("allowed are 1 to 10000"));
    }

    #[test]
    fn nothing_is_typed_for_a_process_that_allows_no_changes() {
        let mut state = state(false);
        assert_eq!(press(&mut state, &typed("w300")), Wish::Nothing);
        assert!(state.typed.is_none());
        press(&mut state, &[KeyCode::Char('m')]);
        assert!(shown(&state).contains("allows no changes"));
    }

    #[test]
    fn control_c_and_q_end_it() {
        let mut state = state(true);
        assert_eq!(press(&mut state, &[KeyCode::Char('q')]), Wish::End);
        press(&mut state, &[KeyCode::Char('w')]);
        let key = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(state.press(key), Wish::End);
    }
}
