//! Builds a program, a crate beside it and a library for `dlopen` in every way that moves code about, and runs them.
//!
//! `cargo test -p quotient-keys --test build_matrix -- --ignored`, about a minute.

#![cfg(patching)]
#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A way to build.
struct Way {
    name: &'static str,
    profile: &'static str,
    /// What differs from the profile.
    settings: &'static [(&'static str, &'static str)],
}

const fn way(
    name: &'static str,
    profile: &'static str,
    settings: &'static [(&'static str, &'static str)],
) -> Way {
    Way {
        name,
        profile,
        settings,
    }
}

const WAYS: [Way; 7] = [
    way("debug", "dev", &[]),
    way("release", "release", &[]),
    way(
        "lto-fat-one-unit",
        "release",
        &[("LTO", "fat"), ("CODEGEN_UNITS", "1")],
    ),
    way("lto-thin", "release", &[("LTO", "thin")]),
    way("one-unit", "release", &[("CODEGEN_UNITS", "1")]),
    way("panic-abort", "release", &[("PANIC", "abort")]),
    way(
        "small",
        "release",
        &[("OPT_LEVEL", "s"), ("PANIC", "abort"), ("LTO", "fat")],
    ),
];

/// Writes the three crates; their sources lie in `tests/matrix`.
fn lay_out() -> PathBuf {
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("matrix");
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/matrix");
    let keys = env!("CARGO_MANIFEST_DIR");
    let write = |path: &str, text: String| {
        let path = home.join(path);
        fs::create_dir_all(path.parent().expect("a file is in a folder"))
            .expect("a writable target folder");
        fs::write(path, text).expect("a writable target folder");
    };
    let copy = |from: &str, to: &str| {
        write(
            to,
            fs::read_to_string(sources.join(from)).expect("the sources are there"),
        );
    };
    let package = |name: &str, rest: &str| {
        format!(
            "[package]\nname = \"{name}\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n{rest}\n\
             [dependencies]\nquotient-keys = {{ path = {keys:?} }}\n"
        )
    };
    let base_too = "base = { path = \"../base\" }\n";
    write(
        "Cargo.toml",
        "[workspace]\nresolver = \"3\"\nmembers = [\"base\", \"app\", \"plugin\", \"bare\"]\n"
            .to_owned(),
    );
    write("base/Cargo.toml", package("base", ""));
    write("app/Cargo.toml", package("app", "") + base_too);
    write(
        "plugin/Cargo.toml",
        package("plugin", "[lib]\ncrate-type = [\"cdylib\"]\n") + base_too,
    );
    write(
        "bare/Cargo.toml",
        package("bare", "[lib]\ncrate-type = [\"cdylib\"]\n"),
    );
    copy("bare.rs", "bare/src/lib.rs");
    copy("base.rs", "base/src/lib.rs");
    copy("app.rs", "app/src/main.rs");
    copy("checks.rs", "app/src/checks.rs");
    copy("plugin.rs", "plugin/src/lib.rs");
    copy("checks.rs", "plugin/src/checks.rs");
    home
}

fn build_and_run(
    home: &Path,
    Way {
        name,
        profile,
        settings,
    }: Way,
) {
    let target = home.join("target");
    let mut build = Command::new(env!("CARGO"));
    build
        .current_dir(home)
        .args([
            "build",
            "--offline",
            "--quiet",
            "--workspace",
            "--profile",
            profile,
        ])
        .env("CARGO_TARGET_DIR", &target)
        .env("CARGO_INCREMENTAL", "0");
    for (setting, value) in settings {
        build.env(format!("CARGO_PROFILE_RELEASE_{setting}"), value);
    }
    assert!(
        build.status().expect("cargo starts").success(),
        "{name} does not build"
    );
    let built = target.join(if profile == "dev" { "debug" } else { "release" });
    let run = Command::new(built.join("app"))
        .arg(built.join("libplugin.so"))
        .arg(built.join("libbare.so"))
        .output()
        .expect("the program starts");
    let errors = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{name}: {}\n{errors}", run.status);
    println!("{name}: {}", String::from_utf8_lossy(&run.stdout).trim());
}

#[test]
#[ignore = "builds seven times; run it when code generation or the section's layout changes"]
fn every_way_to_build_keeps_the_sites() {
    let home = lay_out();
    for way in WAYS {
        build_and_run(&home, way);
    }
}
