//! docs/compatibility.md names tests; each of them has to be there.

use std::path::Path;

#[test]
fn every_named_test_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |path: &str| {
        std::fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    };
    let page = read("docs/compatibility.md");
    let mut seen = 0;
    for row in page.lines().filter(|line| line.starts_with("| ")).skip(1) {
        let cell = row.trim_end_matches('|').rsplit('|').next().expect("a cell");
        let mut file = String::new();
        for name in cell.split('`').skip(1).step_by(2) {
            let parts: Vec<&str> = name.split("::").collect();
            let (text, parts) = match parts.as_slice() {
                ["text", rest @ ..] => (Some("lily-text"), rest),
                rest => (None, rest),
            };
            // `::test` is in the file named before it.
            if !parts[0].is_empty() {
                file = format!("crates/{}/tests/{}.rs", text.unwrap_or("lily-scripted"), parts[0]);
            }
            let source = read(&file);
            if let Some(test) = parts.get(1) {
                assert!(source.contains(&format!("fn {test}(")), "{name}: no such test in {file}");
            }
            seen += 1;
        }
    }
    assert!(seen > 50, "{seen} names were read");
}
