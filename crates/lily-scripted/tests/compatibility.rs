//! docs/compatibility.md names tests; each of them has to be there.

use std::path::Path;

/// Where tests are whose names begin with this.
const FOLDERS: [(&str, &str); 8] = [
    ("agents", "tests/agents/*.py"),
    ("model", "crates/lily-model/src/tests/*.rs"),
    ("text", "crates/lily-text/tests/*.rs"),
    ("engine", "crates/lily-engine/tests/engine/*.rs"),
    ("e2e", "tests/e2e/*.py"),
    ("clients", "tests/clients/*.py"),
    ("server", "tests/server/*.py"),
    ("openapi", "tests/openapi/*.py"),
];

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
            // A folder of tests has a name of its own; `::test` is in the file named before it.
            let folder = FOLDERS.iter().find(|(word, _)| *word == parts[0]);
            let (pattern, parts) = match folder {
                Some((_, pattern)) => (*pattern, &parts[1..]),
                None => ("crates/lily-scripted/tests/*.rs", &parts[..]),
            };
            if !parts[0].is_empty() {
                file = pattern.replace('*', parts[0]);
            }
            let source = read(&file);
            // A file in Python is one concern; one in Rust is many.
            assert!(parts.len() == 2 || file.ends_with(".py"), "{name}: which test of {file}?");
            if let Some(test) = parts.get(1) {
                let is_there = ["fn", "def"].iter().any(|word| source.contains(&format!("{word} {test}(")));
                assert!(is_there, "{name}: no such test in {file}");
            }
            seen += 1;
        }
    }
    assert!(seen > 50, "{seen} names were read");
}
