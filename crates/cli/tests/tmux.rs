//! `quotient top` as a person has it: in a shell, in a terminal that draws what is written to it (tmux).
//!
//! Hazards: that a key does nothing in a real terminal, or something else; that what is drawn over is left standing; that the shell
//! behind it is on the wrong screen, or does not show what is typed, once the program has ended.
#![cfg(target_os = "linux")]

#[allow(dead_code)] // what other tests call
mod common;

use std::process::{Command, Output};
use std::time::{Duration, Instant};

use common::Folder;
use quotient::{Group, Scheduler};
use quotient_attach::Attach;

/// Hangs are bounded by this and nothing else is.
const HANG: Duration = Duration::from_secs(120);

/// A terminal with a shell in it, of a server of its own.
struct Tmux {
    folder: Folder,
}

impl Tmux {
    /// `None` where there is no tmux.
    fn new(name: &str) -> Option<Self> {
        if let Err(error) = Command::new("tmux").arg("-V").output() {
            eprintln!("skipped: no tmux here: {error}");
            return None;
        }
        let tmux = Self {
            folder: Folder::new(name),
        };
        let size = ["-x", "110", "-y", "12"];
        // Without job control: who stops a whole process group stops nothing that this shell would talk about.
        let shell = ["env", "PS1=prompt> ", "ENV=", "sh", "-i", "+m"];
        let session = ["-f", "/dev/null", "new-session", "-d"];
        tmux.ask(&[&session[..], &size, &shell].concat());
        tmux.until("the shell", |shown| shown.contains("prompt>"));
        Some(tmux)
    }

    fn call(&self, arguments: &[&str]) -> Output {
        let mut call = Command::new("tmux");
        call.arg("-S").arg(self.folder.file("tmux"));
        call.args(arguments).output().expect("it is there")
    }

    fn ask(&self, arguments: &[&str]) -> String {
        let output = self.call(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Types `text` as it is.
    fn write(&self, text: &str) {
        self.ask(&["send-keys", "-l", text]);
    }

    /// Presses a key by its name.
    fn press(&self, key: &str) {
        self.ask(&["send-keys", key]);
    }

    /// What a person sees.
    fn shown(&self) -> String {
        self.ask(&["capture-pane", "-p"])
    }

    fn until(&self, what: &str, is_so: impl Fn(&str) -> bool) -> String {
        let began = Instant::now();
        loop {
            let shown = self.shown();
            if is_so(&shown) {
                return shown;
            }
            assert!(began.elapsed() < HANG, "{what}: {shown}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        self.call(&["kill-server"]);
    }
}

/// Whether the rows of the groups stand in this order.
fn in_order(shown: &str, paths: &[&str]) -> bool {
    let places = paths.iter().map(|path| shown.find(path));
    let places: Option<Vec<usize>> = places.collect();
    places.is_some_and(|places| places.is_sorted())
}

/// A screen of `top` over three groups, that allows changes.
fn top(tmux: &Tmux, scheduler: &Scheduler) -> ([Group; 3], quotient_attach::Attached) {
    let groups = [("alpha", 20), ("beta", 500), ("gamma", 100)].map(|(path, weight)| {
        let group = scheduler.group(path).expect("a path").weight(weight);
        group.create().expect("a group")
    });
    let socket = tmux.folder.file("socket");
    let attached = Attach::new(scheduler).path(&socket).allow_changes().open();
    let call = format!(
        "{} top {socket} --interval-ms 100 --sort path",
        env!("CARGO_BIN_EXE_quotient")
    );
    tmux.write(&call);
    tmux.press("Enter");
    tmux.until("the screen", |shown| {
        shown.starts_with("quotient top") && in_order(shown, &["/alpha", "/beta", "/gamma"])
    });
    (groups, attached.expect("a socket"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn keys_do_in_a_terminal_what_they_say() {
    let Some(tmux) = Tmux::new("tmux-keys") else {
        return;
    };
    let scheduler = Scheduler::builder().vcpus(1).build().expect("a scheduler");
    let ([alpha, beta, gamma], _attached) = top(&tmux, &scheduler);

    tmux.press("s");
    tmux.until("sorted by weight", |shown| {
        shown.contains("sort Weight") && in_order(shown, &["/beta", "/gamma", "/alpha"])
    });
    tmux.press("/");
    tmux.write("alp");
    tmux.until("what is typed", |shown| shown.contains("filter: alp_"));
    tmux.press("Enter");
    tmux.until("filtered", |shown| {
        shown.contains("/alpha") && !shown.contains("/beta") && !shown.contains("/gamma")
    });
    tmux.press("w");
    tmux.write("700");
    tmux.press("Enter");
    tmux.until("the new weight", |shown| {
        shown.contains("700") && shown.contains("done")
    });
    tmux.press("m");
    tmux.write("25ms/100ms");
    tmux.press("Enter");
    tmux.until("the new limit", |shown| {
        shown.contains("0.25") && shown.contains("done")
    });
    let limit = alpha
        .max()
        .map(|limit| (limit.quota.as_nanos(), limit.period.as_nanos()));
    assert_eq!(
        (alpha.weight(), limit),
        (700, Some((25_000_000, 100_000_000)))
    );
    assert_eq!([&beta, &gamma].map(Group::weight), [500, 100]);
    tmux.press("w");
    tmux.write("0");
    tmux.press("Enter");
    tmux.until("the refusal", |shown| shown.contains("10000"));
    assert_eq!(alpha.weight(), 700);
    scheduler.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_shell_is_as_it_was_afterwards() {
    let Some(tmux) = Tmux::new("tmux-shell") else {
        return;
    };
    let scheduler = Scheduler::builder().vcpus(1).build().expect("a scheduler");
    let (before, after) = (tmux.folder.file("before"), tmux.folder.file("after"));
    let look = |file: &str, says: &str| {
        // Not -g: newer C libraries write down that one speed is the other, where it was left open before.
        tmux.write(&format!("stty -a > {file}; echo {says}"));
        tmux.press("Enter");
        // What is typed, and what is answered.
        tmux.until(says, |shown| shown.matches(says).count() == 2);
        std::fs::read_to_string(file).expect("the shell wrote it")
    };
    let modes = look(&before, "earlier");
    for end in ["q", "C-c"] {
        let (_groups, _attached) = top(&tmux, &scheduler);
        assert!(!tmux.shown().contains("earlier"), "a screen of its own");
        tmux.press(end);
        let shown = tmux.until("the shell", |shown| shown.contains("earlier"));
        assert!(!shown.contains("virtual CPUs"), "{end}: {shown}");
    }
    assert_eq!(look(&after, "later"), modes);
    scheduler.shutdown().await;
}
