//! Many sites: dense ones in ordinary code, and ones that each have a page of their own.
//!
//! 4,096 pages of one site each are left out: they would make this binary 16 MB larger.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

use quotient_keys::{Key, static_key};

static_key! {
    /// 1 site.
    static DENSE_1 = false, as "bench.dense-1";
    /// 8 sites.
    static DENSE_8 = false, as "bench.dense-8";
    /// 56 sites, as many as the kernel's `schedstats` key had in 2019.
    static DENSE_56 = false, as "bench.dense-56";
    /// 512 sites.
    static DENSE_512 = false, as "bench.dense-512";
    /// 4,096 sites.
    static DENSE_4096 = false, as "bench.dense-4096";
    /// 1 site.
    static PAGE_1 = false, as "bench.page-1";
    /// 8 sites, each on its own page.
    static PAGE_8 = false, as "bench.page-8";
    /// 56 sites, each on its own page.
    static PAGE_56 = false, as "bench.page-56";
    /// 512 sites, each on its own page.
    static PAGE_512 = false, as "bench.page-512";
}

/// Evaluations of the peer thread, one for each block of sites.
pub static PROGRESS: AtomicU64 = AtomicU64::new(0);

/// A key, how many sites it should have and how they lie, and what executes them all.
#[derive(Clone, Copy)]
pub struct Subject {
    /// Flipped.
    pub key: &'static Key,
    /// How many there should be.
    pub sites: usize,
    /// `dense` or `page`.
    pub layout: &'static str,
    /// Executes each site once; returns how many are on.
    pub execute: fn() -> u32,
}

macro_rules! times_8 {
    ($($body:tt)*) => { $($body)* $($body)* $($body)* $($body)* $($body)* $($body)* $($body)* $($body)* };
}

macro_rules! dense {
    ($key:path, $sum:ident) => {
        if quotient_keys::static_branch_unlikely!($key) {
            $sum = black_box($sum + 1);
        }
    };
}

/// At the start of a page, reached by a jump over the filling. (Where code is not patched, the placing is left out.)
macro_rules! page {
    ($key:path, $sum:ident) => {
        if quotient_keys::__site!(
            $key,
            false,
            ["jmp 3f", ".p2align 12", "3:", "2: jmp {slow}"]
        ) {
            $sum = black_box($sum + 1);
        }
    };
}

fn progress() {
    PROGRESS.fetch_add(1, Ordering::Relaxed);
}

macro_rules! one {
    ($name:ident, $kind:ident, $key:path) => {
        #[inline(never)]
        fn $name() -> u32 {
            progress();
            let mut sum = 0;
            $kind!($key, sum);
            sum
        }
    };
}

macro_rules! eight {
    ($name:ident, $kind:ident, $key:path) => {
        #[inline(never)]
        fn $name() -> u32 {
            progress();
            let mut sum = 0;
            times_8! { $kind!($key, sum); }
            sum
        }
    };
}

macro_rules! fifty_six {
    ($name:ident, $kind:ident, $key:path) => {
        #[inline(never)]
        fn $name() -> u32 {
            progress();
            let mut sum = 0;
            times_8! {
                $kind!($key, sum);
                $kind!($key, sum);
                $kind!($key, sum);
                $kind!($key, sum);
                $kind!($key, sum);
                $kind!($key, sum);
                $kind!($key, sum);
            }
            sum
        }
    };
}

/// 64 sites a block; the number keeps the compiler from merging blocks.
macro_rules! blocks {
    ($name:ident, $block:ident, $kind:ident, $key:path, [$($number:literal)+]) => {
        #[inline(never)]
        fn $block<const NUMBER: u32>() -> u32 {
            progress();
            let mut sum = black_box(NUMBER);
            times_8! { times_8! { $kind!($key, sum); } }
            sum - NUMBER
        }

        fn $name() -> u32 {
            0 $(+ $block::<$number>())+
        }
    };
}

one!(dense_1, dense, DENSE_1);
eight!(dense_8, dense, DENSE_8);
fifty_six!(dense_56, dense, DENSE_56);
blocks!(dense_512, dense_512_block, dense, DENSE_512, [0 1 2 3 4 5 6 7]);
blocks!(dense_4096, dense_4096_block, dense, DENSE_4096, [
    0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31
    32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63
]);
one!(page_1, page, PAGE_1);
eight!(page_8, page, PAGE_8);
fifty_six!(page_56, page, PAGE_56);
blocks!(page_512, page_512_block, page, PAGE_512, [0 1 2 3 4 5 6 7]);

/// Everything that can be flipped here.
pub fn subjects() -> Vec<Subject> {
    let subject = |key: &'static Key, sites, layout, execute| Subject {
        key,
        sites,
        layout,
        execute,
    };
    vec![
        subject(&DENSE_1, 1, "dense", dense_1),
        subject(&DENSE_8, 8, "dense", dense_8),
        subject(&DENSE_56, 56, "dense", dense_56),
        subject(&DENSE_512, 512, "dense", dense_512),
        subject(&DENSE_4096, 4096, "dense", dense_4096),
        subject(&PAGE_1, 1, "page", page_1),
        subject(&PAGE_8, 8, "page", page_8),
        subject(&PAGE_56, 56, "page", page_56),
        subject(&PAGE_512, 512, "page", page_512),
    ]
}
