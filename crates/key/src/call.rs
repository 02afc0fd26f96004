//! A call behind a key that costs the function around it one instruction: [`static_call_if!`](crate::static_call_if) on x86-64
//! where sites can be patched. Elsewhere it is a branch and a call (`call_plain.rs`).
//!
//! With an ordinary branch the compiler sees a call, and a function that was a leaf is none any more: it saves registers and
//! aligns the stack on every path, since LLVM does not move that to the cold side of an `asm goto`. Here it sees an assembly block
//! that changes nothing but flags, memory and vector registers. The block's jump leads to a stub behind the function, which loads the key
//! and, if it is on, saves what a call may change, calls, restores, and goes back.
//!
//! # The stub
//!
//! * It steps over the red zone (128 bytes below the stack pointer), where a leaf function may keep values, and aligns the stack itself.
//! * It saves the nine registers for integers that a callee may change. Vector registers, `x87` and mask registers are declared as
//!   changed by the block: a function that keeps something in them pays, others do not.
//! * Arguments are in the first registers of the C calling convention. The callee is an `extern "C"` function, so that a panic
//!   aborts instead of unwinding through the stub, of which no unwinder knows.
//! * It stands in the same section as the function, at its end, so the linker keeps or drops them together.
//! * The site's entry leads to the stub's load of the key, as that of any other site: right in every form of the site, and for a thread that
//!   ran into a breakpoint.
//!
//! # What it accepts
//!
//! Up to four arguments of types that fit a register, by a sealed trait. Only words go through the stub, so the types on its two
//! sides must be the same without its help: they are those of a function's signature, where the compiler infers nothing and
//! no lifetime may be chosen. A call of that function that is never executed stands beside the block, so that the arguments
//! are checked against the signature, and their lifetimes too.

/// The block of [`static_call_if!`](crate::static_call_if).
#[doc(hidden)]
#[macro_export]
macro_rules! __call_site {
    ($key:path [$index:expr], [$($function:tt)+] [$($argument:ident : $type:ty, $place:tt, $word:ident;)*]) => {{
        /// The call with the types as written; nothing is inferred, and it must be right for all lifetimes.
        fn __quotient_key_typed($($word: $type),*) {
            $($function)+($($word),*)
        }
        /// What the stub calls.
        #[cold]
        extern "C" fn __quotient_key_called($($word: u64),*) {
            // SAFETY: each word was made from a value of that very type, which lives until the call returns; that this
            // function may be called with it is checked below.
            __quotient_key_typed($(unsafe { <$type as $crate::__private::Word>::from_word($word) }),*)
        }
        if false {
            __quotient_key_typed($($argument),*);
            // Outside of the unsafe block, which would let an index do what only unsafe code may.
            let _ = const { $crate::__private::offset_of(&$key, $index) };
        }
        // SAFETY: the block falls through to its end in every form of the site. What the stub and the callee change is saved or
        // declared, the stack below the red zone is free, and memory is not said to be untouched. The entry in the other section
        // holds distances and executes never. `offset_of` vouches that the path names a key, or an array of keys that has this
        // element.
        unsafe {
            $crate::__private::core::arch::asm!(
                "2: jmp 3f",
                "4:",
                ".subsection 1",
                "3: cmp byte ptr [rip + {key} + {offset} + {state}], 0",
                "je 4b",
                "lea rsp, [rsp - 128]",
                "push rax",
                "push rcx",
                "push rdx",
                "push rsi",
                "push rdi",
                "push r8",
                "push r9",
                "push r10",
                "push r11",
                "push rbp",
                "mov rbp, rsp",
                "and rsp, -16",
                "cld",
                "call {called}",
                "mov rsp, rbp",
                "pop rbp",
                "pop r11",
                "pop r10",
                "pop r9",
                "pop r8",
                "pop rdi",
                "pop rsi",
                "pop rdx",
                "pop rcx",
                "pop rax",
                "lea rsp, [rsp + 128]",
                "jmp 4b",
                ".subsection 0",
                $crate::__entry_macro!(),
                $crate::__private::core::concat!($crate::__layout!(), "_entry 3b, {key}, {offset}"),
                key = sym $key,
                offset = const $crate::__private::offset_of(&$key, $index),
                state = const $crate::__private::STATE_OFFSET,
                called = sym __quotient_key_called,
                $(in($place) <$type as $crate::__private::Word>::to_word($argument),)*
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
                out("xmm16") _, out("xmm17") _, out("xmm18") _, out("xmm19") _,
                out("xmm20") _, out("xmm21") _, out("xmm22") _, out("xmm23") _,
                out("xmm24") _, out("xmm25") _, out("xmm26") _, out("xmm27") _,
                out("xmm28") _, out("xmm29") _, out("xmm30") _, out("xmm31") _,
                out("k0") _, out("k1") _, out("k2") _, out("k3") _,
                out("k4") _, out("k5") _, out("k6") _, out("k7") _,
                out("mm0") _, out("mm1") _, out("mm2") _, out("mm3") _,
                out("mm4") _, out("mm5") _, out("mm6") _, out("mm7") _,
                out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
                out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
                options(nostack),
            );
        }
    }};
}
