//! The program of the build matrix: the kernel's checks with keys of two crates, branches wherever code can be compiled,
//! and a library that brings keys and an engine of its own.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::pin::pin;
use std::process::ExitCode;
use std::task::{Context, Poll, Waker};

use quotient_keys::{Mode, static_branch, static_branch_likely, static_key, status};

pub extern crate base;
mod checks;

static_key! {
    /// Branched on in every kind of function.
    static EVERYWHERE = false;
}

fn generic<T: Default + PartialEq>(value: T) -> bool {
    let inner = move || static_branch!(EVERYWHERE) && value == T::default();
    inner()
}

trait Asks {
    fn ask(&self) -> bool {
        static_branch_likely!(EVERYWHERE)
    }
}

impl Asks for u8 {}

#[inline(always)]
fn always_inlined() -> bool {
    static_branch!(EVERYWHERE)
}

async fn asynchronous() -> bool {
    let before = static_branch!(EVERYWHERE);
    std::future::ready(()).await;
    before & static_branch_likely!(EVERYWHERE)
}

fn outcomes() -> Vec<bool> {
    let mut context = Context::from_waker(Waker::noop());
    let awaited = match pin!(asynchronous()).as_mut().poll(&mut context) {
        Poll::Ready(outcome) => outcome,
        Poll::Pending => panic!("nothing to wait for"),
    };
    let asked: &dyn Asks = &0_u8;
    let mut outcomes = vec![awaited, asked.ask(), always_inlined(), generic(0_u32), generic(String::new()), generic([0_u8; 3])];
    outcomes.extend((0..3).map(|_| static_branch!(EVERYWHERE)));
    outcomes
}

unsafe extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

struct Library(*mut c_void);

impl Library {
    fn load(path: &str) -> Self {
        const RTLD_NOW: c_int = 2;
        let path = CString::new(path).expect("a path has no zero byte");
        // SAFETY: a valid string, and libraries of this matrix, which do nothing when they are loaded but list their keys.
        let library = unsafe { dlopen(path.as_ptr(), RTLD_NOW) };
        assert!(!library.is_null(), "the library does not load");
        Self(library)
    }

    /// Calls a function of the library that takes a number and returns one.
    fn call_with(&self, name: &CStr, argument: usize) -> c_int {
        // SAFETY: a valid string; `plugin_round` is the function that is called so.
        unsafe {
            let symbol = dlsym(self.0, name.as_ptr());
            assert!(!symbol.is_null(), "the library lacks {name:?}");
            let function: extern "C" fn(usize) -> c_int = std::mem::transmute(symbol);
            function(argument)
        }
    }

    /// Calls a function of the library that takes nothing.
    fn call<T>(&self, name: &CStr) -> T {
        // SAFETY: a valid string; the libraries' functions take nothing and return what their callers below say.
        unsafe {
            let symbol = dlsym(self.0, name.as_ptr());
            assert!(!symbol.is_null(), "the library lacks {name:?}");
            let function: extern "C" fn() -> T = std::mem::transmute(symbol);
            function()
        }
    }
}

/// The library has an engine of its own and checks itself.
fn check_plugin(path: &str) {
    let library = Library::load(path);
    let failures: c_int = library.call(c"check_plugin");
    assert_eq!(failures, 0, "the library found something wrong");
    for ours in Mode::ALL {
        quotient_keys::set_mode(ours).expect("the mode is available beside another engine");
        for (index, theirs) in Mode::ALL.into_iter().enumerate() {
            let failures = library.call_with(c"plugin_round", index);
            assert_eq!(failures, 0, "the library in {theirs} beside a program in {ours}");
            for on in [true, false] {
                let flipped = EVERYWHERE.set(on);
                assert!(flipped.is_ok(), "{ours} beside a library in {theirs}: {flipped:?}");
                assert!(outcomes().into_iter().all(|outcome| outcome == on));
            }
        }
    }
    assert_eq!(status().displaced, 0);
    quotient_keys::patch();
}

/// A library without sites finds none, and patches none of ours.
fn check_bare(path: &str) {
    EVERYWHERE.enable().expect("nothing hinders");
    EVERYWHERE
        .disable_deferred(std::time::Duration::from_secs(3600))
        .expect("nothing hinders");
    let library = Library::load(path);
    assert_eq!(library.call::<usize>(c"bare_sites"), 0, "it sees our sites");
    assert_eq!(library.call::<usize>(c"bare_patch"), 0, "it patched our sites");
    EVERYWHERE.enable().expect("nothing hinders");
    assert!(outcomes().into_iter().all(|outcome| outcome));
    EVERYWHERE.disable().expect("nothing hinders");
}

fn main() -> ExitCode {
    checks::eighteen_checks_in_every_mode();
    for mode in Mode::ALL {
        quotient_keys::set_mode(mode).expect("the mode is available");
        for on in [true, false, true, false] {
            EVERYWHERE.set(on).expect("nothing hinders");
            assert!(outcomes().into_iter().all(|outcome| outcome == on), "{mode}, {on}");
        }
    }
    quotient_keys::patch_all();
    let before = status();
    assert!(before.patched > 0, "nothing is patched: {before:?}");
    assert!(EVERYWHERE.status().sites >= 8, "sites were lost: {:?}", EVERYWHERE.status());
    assert_eq!(base::BASE_DEAD.status().sites, 0, "the linker kept a dead function");
    if let (Some(plugin), Some(bare)) = (std::env::args().nth(1), std::env::args().nth(2)) {
        check_bare(&bare);
        check_plugin(&plugin);
        assert_eq!(status().sites, before.sites, "the library's sites are not ours");
        assert_eq!(status().foreign, 0);
    }
    println!("{} sites, {} patched", before.sites, before.patched);
    ExitCode::SUCCESS
}
