//! Decides whether this target can patch its own code (`cfg(patching)`).
//!
//! Cargo accepts `links` only beside a build script, and `links` is what forbids two versions of this crate in one
//! program: they would share the site table's section and patch each other's sites.

use std::env;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-check-cfg=cfg(patching)");
    let target = |name: &str| env::var(format!("CARGO_CFG_TARGET_{name}")).unwrap_or_default();
    let is_known = matches!(target("ARCH").as_str(), "x86_64" | "aarch64")
        && target("ENDIAN") == "little"
        && target("POINTER_WIDTH") == "64";
    let can_patch = is_known && target("OS") == "linux";
    // `--cfg quotient_keys_soft` builds the fallback of other platforms where patching would work, to test it.
    let wants_soft = env::var_os("CARGO_CFG_MIRI").is_some()
        || env::var_os("CARGO_CFG_QUOTIENT_KEYS_SOFT").is_some();
    if can_patch && !wants_soft {
        println!("cargo:rustc-cfg=patching");
    }
}
