//! Progress of simulated runs on standard error, and Ctrl-C.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{
    AtomicBool,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quotient_sim::batch::{BatchError, Control};

use crate::failure::Failure;

/// Between two updates of the progress line; what takes less shows none.
const UPDATE: Duration = Duration::from_millis(300);

/// Does `work` on `runs` runs with the machine's threads, showing how far it is, and stops it at Ctrl-C.
///
/// # Errors
/// What `work` says; `Interrupted` at Ctrl-C.
pub fn watched<T>(
    runs: usize,
    work: impl FnOnce(&Control, usize) -> Result<T, BatchError>,
) -> Result<T, Failure> {
    let control = Arc::new(Control::default());
    listen(&control)?;
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let over = AtomicBool::new(false);
    let result = std::thread::scope(|scope| {
        let shower = io::stderr()
            .is_terminal()
            .then(|| scope.spawn(|| show(&control, runs, &over)));
        let result = work(&control, threads);
        over.store(true, Relaxed);
        if let Some(shower) = shower {
            shower.thread().unpark();
        }
        result
    });
    result.map_err(super::failure)
}

/// The batch that Ctrl-C stops. A process can have one handler only, and a command several batches in a row.
static CURRENT: Mutex<Option<Arc<Control>>> = Mutex::new(None);
/// Ctrl-C was pressed, perhaps between two batches: it stops the next one as well.
static IS_INTERRUPTED: AtomicBool = AtomicBool::new(false);

fn listen(control: &Arc<Control>) -> Result<(), Failure> {
    *current() = Some(Arc::clone(control));
    let installed = ctrlc::set_handler(|| {
        IS_INTERRUPTED.store(true, SeqCst);
        if let Some(control) = &*current() {
            control.stop.store(true, SeqCst);
        }
    });
    if IS_INTERRUPTED.load(SeqCst) {
        control.stop.store(true, SeqCst);
    }
    match installed {
        // The handler of the batch before: it looks into `CURRENT`, too.
        Ok(()) | Err(ctrlc::Error::MultipleHandlers) => Ok(()),
        Err(error) => Err(Failure::Run(format!("cannot listen for Ctrl-C: {error}"))),
    }
}

fn current() -> MutexGuard<'static, Option<Arc<Control>>> {
    // Nothing that is done under this lock can panic.
    CURRENT.lock().unwrap_or_else(PoisonError::into_inner)
}

fn show(control: &Control, runs: usize, over: &AtomicBool) {
    let whole = Control::pieces(runs).max(1);
    let mut shown = false;
    loop {
        std::thread::park_timeout(UPDATE);
        if over.load(Relaxed) {
            break;
        }
        shown = true;
        let done = control.done.load(Relaxed) * 100 / whole;
        print(&format!("\r\x1b[2Ksimulating {runs} runs: {done:3} %"));
    }
    if shown {
        print("\r\x1b[2K");
    }
}

fn print(text: &str) {
    let mut stderr = io::stderr();
    // Progress that cannot be shown is no reason to stop.
    let _ = stderr.write_all(text.as_bytes());
    let _ = stderr.flush();
}
