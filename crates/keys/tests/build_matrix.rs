//! Builds a program, a crate beside it and a library for `dlopen` in every way that moves code about, and runs them. And
//! libraries that know of keys only, in programs with and without the engine.
//!
//! `cargo test -p quotient-keys --test build_matrix -- --ignored`, about a minute and a half.

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

/// Builds all crates of `home`; where the programs are.
fn build(
    home: &Path,
    Way {
        name,
        profile,
        settings,
    }: Way,
) -> PathBuf {
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
    target.join(if profile == "dev" { "debug" } else { "release" })
}

/// Runs a program that was built.
fn run(name: &str, program: &mut Command) {
    let run = program.output().expect("the program starts");
    let errors = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{name}: {}\n{errors}", run.status);
    println!("{name}: {}", String::from_utf8_lossy(&run.stdout).trim());
}

#[test]
#[ignore = "builds seven times; run it when code generation or the section's layout changes"]
fn every_way_to_build_keeps_the_sites() {
    let home = lay_out();
    for way in WAYS {
        let name = way.name;
        let built = build(&home, way);
        let libraries = ["libplugin.so", "libbare.so"].map(|library| built.join(library));
        run(name, Command::new(built.join("app")).args(libraries));
    }
}

/// Copies `crates/key` with another version, and with its text changed.
fn lay_out_keys(home: &Path, folder: &str, version: &str, changes: &[(&str, &str)]) {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../key/src");
    let place = home.join(folder);
    fs::create_dir_all(place.join("src")).expect("a writable target folder");
    let manifest = format!(
        "[package]\nname = \"quotient-key\"\nversion = \"{version}\"\nedition = \"2024\"\n\n[features]\nalloc = []\nmodel = []\n\n\
         [lints.rust]\nunexpected_cfgs = {{ level = \"warn\", check-cfg = [\"cfg(quotient_keys_soft)\"] }}\n"
    );
    fs::write(place.join("Cargo.toml"), manifest).expect("a writable target folder");
    for file in fs::read_dir(sources).expect("the sources are there") {
        let file = file.expect("the sources are there");
        let mut text = fs::read_to_string(file.path()).expect("the sources are text");
        for (from, to) in changes {
            text = text.replace(from, to);
        }
        fs::write(place.join("src").join(file.file_name()), text).expect("a writable folder");
    }
}

/// Writes a library for each of three versions of the keys, and two programs.
fn lay_out_facades() -> PathBuf {
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("facades");
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let ours = here.join("../key");
    lay_out_keys(&home, "same_layout_keys", "0.2.0", &[]);
    // Another layout: the key's value is elsewhere. So its section has another name.
    let other = [
        ("quotient_keys_v2", "quotient_keys_v3"),
        (
            "    state: AtomicBool,",
            "    added: [u64; 3],\n    state: AtomicBool,",
        ),
        (
            "            state: AtomicBool::new",
            "            added: [0; 3],\n            state: AtomicBool::new",
        ),
    ];
    lay_out_keys(&home, "other_layout_keys", "0.3.0", &other);
    let package = |name: &str, source: &str, file: &str, dependencies: &str| {
        let place = home.join(name);
        fs::create_dir_all(place.join("src")).expect("a writable target folder");
        let manifest = format!(
            "[package]\nname = \"{name}\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[dependencies]\n{dependencies}"
        );
        fs::write(place.join("Cargo.toml"), manifest).expect("a writable target folder");
        fs::copy(
            here.join("tests/facades").join(source),
            place.join("src").join(file),
        )
        .expect("a writable target folder");
    };
    let keys = |path: &Path| format!("quotient-key = {{ path = {path:?} }}\n");
    package("library", "library.rs", "lib.rs", &keys(&ours));
    for (name, copy) in [
        ("same_layout", "same_layout_keys"),
        ("other_layout", "other_layout_keys"),
    ] {
        package(name, "library.rs", "lib.rs", &keys(&home.join(copy)));
    }
    package(
        "plain",
        "plain.rs",
        "main.rs",
        "library = { path = \"../library\" }\n",
    );
    let engine = format!("quotient-keys = {{ path = {here:?} }}\n");
    let libraries = ["library", "same_layout", "other_layout"]
        .map(|name| format!("{name} = {{ path = \"../{name}\" }}\n"));
    package(
        "chosen",
        "chosen.rs",
        "main.rs",
        &(engine + &libraries.concat()),
    );
    let members = r#"["library", "same_layout", "other_layout", "plain", "chosen"]"#;
    let copies = r#"["same_layout_keys", "other_layout_keys"]"#;
    let workspace =
        format!("[workspace]\nresolver = \"3\"\nmembers = {members}\nexclude = {copies}\n");
    fs::write(home.join("Cargo.toml"), workspace).expect("a writable target folder");
    home
}

#[test]
#[ignore = "builds three times; run it when the section's layout or what leads to an engine changes"]
fn libraries_share_keys_and_the_program_chooses_the_engine() {
    let home = lay_out_facades();
    for way in WAYS.into_iter().take(3) {
        let name = way.name;
        let built = build(&home, way);
        run(name, &mut Command::new(built.join("plain")));
        run(name, &mut Command::new(built.join("chosen")));
    }
}
