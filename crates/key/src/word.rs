//! What [`static_call_if!`](crate::static_call_if) can hand over: values that fit a register.

/// Implemented for integers, `bool`, raw pointers and references.
pub trait Word: sealed::Sealed + Copy {
    /// As a register holds it.
    fn to_word(self) -> u64;

    /// Back.
    ///
    /// # Safety
    /// The word is that of a value of this type which is still valid.
    unsafe fn from_word(word: u64) -> Self;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! integers {
    ($($integer:ty)+) => {$(
        impl sealed::Sealed for $integer {}

        impl Word for $integer {
            #[inline(always)]
            fn to_word(self) -> u64 {
                self as u64
            }

            #[inline(always)]
            unsafe fn from_word(word: u64) -> Self {
                word as Self
            }
        }
    )+};
}

integers!(u8 u16 u32 u64 usize i8 i16 i32 i64 isize);

impl sealed::Sealed for bool {}

impl Word for bool {
    #[inline(always)]
    fn to_word(self) -> u64 {
        self.into()
    }

    #[inline(always)]
    unsafe fn from_word(word: u64) -> Self {
        word != 0
    }
}

impl<T> sealed::Sealed for *const T {}

impl<T> Word for *const T {
    #[inline(always)]
    fn to_word(self) -> u64 {
        self.expose_provenance() as u64
    }

    #[inline(always)]
    unsafe fn from_word(word: u64) -> Self {
        core::ptr::with_exposed_provenance(word as usize)
    }
}

impl<T> sealed::Sealed for *mut T {}

impl<T> Word for *mut T {
    #[inline(always)]
    fn to_word(self) -> u64 {
        self.expose_provenance() as u64
    }

    #[inline(always)]
    unsafe fn from_word(word: u64) -> Self {
        core::ptr::with_exposed_provenance_mut(word as usize)
    }
}

impl<T> sealed::Sealed for &T {}

impl<T> Word for &T {
    #[inline(always)]
    fn to_word(self) -> u64 {
        core::ptr::from_ref(self).to_word()
    }

    #[inline(always)]
    unsafe fn from_word(word: u64) -> Self {
        // SAFETY: the caller vouches that a reference was made to this word, and that what it leads to is still borrowed.
        unsafe { &*<*const T>::from_word(word) }
    }
}
