//! Pages on a phone: what is wider than its screen scrolls by itself, and nothing else moves the page sideways. There is no browser here, so the
//! rules of the page are judged.

mod common;

use common::{Folder, quotient, stderr};

/// Width of a phone's screen. Unit: CSS pixels.
const PHONE: u32 = 390;

const SCENARIO: &str = r#"
name = "a page with a long name that a phone has to break somewhere"
duration = "3s"
machine = { shape = "2x8" }
[[group]]
path = "web"
[[workload]]
name = "served"
kind = "closed-loop"
group = "web"
threads = 20
work = "1ms"
think = "4ms"
[[expect]]
what = "all of it"
value = "busy / elapsed"
min = 0
"#;

/// The tags that are open at each `<svg`, `<table` and `<pre`, with attributes.
fn around_wide_things(page: &str) -> Vec<(String, Vec<String>)> {
    let mut open: Vec<String> = Vec::new();
    let mut found = Vec::new();
    for part in page.split('<').skip(1) {
        let tag = part.split('>').next().unwrap_or("");
        let name = tag.split([' ', '/']).next().unwrap_or("");
        if let Some(closed) = tag.strip_prefix('/') {
            while open
                .pop()
                .is_some_and(|tag| tag.split(' ').next() != Some(closed))
            {}
            continue;
        }
        if ["svg", "table", "pre"].contains(&name) {
            found.push((tag.to_owned(), open.clone()));
        }
        if !tag.ends_with('/') && !["meta", "br", "hr", "!doctype"].contains(&name) {
            open.push(tag.to_owned());
        }
    }
    found
}

/// Every `property:NUMBERpx` of the style that could hold a box wider than the screen.
fn fixed_widths(style: &str) -> Vec<(String, u32)> {
    let mut widths = Vec::new();
    for rule in style.split('}') {
        let (selector, declarations) = rule.split_once('{').unwrap_or(("", ""));
        // `@media(max-width:760px){.pair{...`: a condition is no width.
        let declarations = declarations.rsplit('{').next().unwrap_or("");
        for declaration in declarations.split(';') {
            if let Some((name, value)) = declaration.split_once(':')
                && ["width", "min-width"].contains(&name.trim())
                && let Some(pixels) = value.trim().strip_suffix("px")
            {
                widths.push((selector.to_owned(), pixels.parse().expect("a number")));
            }
        }
    }
    widths
}

fn assert_fits(page: &str, what: &str) {
    assert!(
        page.contains("name=\"viewport\" content=\"width=device-width"),
        "{what}"
    );
    let style = page
        .split("<style>")
        .nth(1)
        .and_then(|rest| rest.split("</style>").next());
    let style = style.expect("a style");
    assert!(style.contains(".scroll{overflow-x:auto}"), "{what}");
    assert!(
        style.contains("overflow-wrap:anywhere"),
        "{what}: long words"
    );
    for (selector, pixels) in fixed_widths(style) {
        let is_inside = selector.trim().starts_with(".wide ");
        assert!(
            pixels <= PHONE || is_inside,
            "{what}: {selector} is {pixels} px wide"
        );
    }
    let things = around_wide_things(page);
    assert!(!things.is_empty(), "{what}: neither pictures nor tables");
    for (tag, around) in things {
        let is_in = |class: &str| around.iter().any(|tag| tag.contains(class));
        let has_width = tag.contains(" width=") || tag.contains("min-width");
        assert!(!has_width, "{what}: {tag} has a width of its own");
        // Pictures shrink with the page unless they are wide, and those scroll.
        let shrinks = tag.starts_with("svg") && !is_in("wide");
        assert!(
            shrinks || is_in("scroll"),
            "{what}: {tag} within {around:?}"
        );
        assert!(
            !tag.starts_with("svg") || tag.contains("viewBox"),
            "{what}: {tag}"
        );
    }
}

#[test]
fn nothing_is_wider_than_a_phone() {
    let folder = Folder::new("phone");
    let scenario = folder.file("s.toml");
    std::fs::write(&scenario, SCENARIO).expect("our own folder");
    let (trace, run) = (folder.file("run.jsonl"), folder.file("run.html"));
    let (converted, advice) = (folder.file("trace.html"), folder.file("advice.html"));
    for arguments in [
        vec!["sim", &scenario, "--trace", &trace, "--report", &run],
        vec!["convert", &trace, &converted],
        vec![
            "advise", &trace, "--group", "web", "--cpus", "2,4", "--seeds", "1", "--report",
            &advice,
        ],
    ] {
        let output = quotient(&arguments);
        assert!(output.status.success(), "{}", stderr(&output));
    }
    for page in [&run, &converted, &advice] {
        assert_fits(&std::fs::read_to_string(page).expect("written"), page);
    }
    // The lines of the advice stand under the names of their columns.
    let page = std::fs::read_to_string(&advice).expect("written");
    assert!(page.contains("throttled %    +p50 ms"), "{page}");
}
