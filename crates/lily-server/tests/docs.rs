//! `docs/api.md` says what the server does, because it is made from the tables that the server obeys.

use std::path::Path;

#[test]
fn the_api_reference_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/api.md");
    let wanted = lily_server::api_reference();
    if std::env::var_os("LILY_BLESS").is_some() {
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("docs/ can be made");
        std::fs::write(&path, wanted).expect("docs/api.md can be written");
        return;
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = found.lines().zip(wanted.lines()).position(|(found, wanted)| found != wanted);
    assert!(
        found == wanted,
        "docs/api.md is not what the tables say (first at line {:?}); write it anew with\n    \
         LILY_BLESS=1 cargo test -p lily-server --test docs",
        differs.map(|line| line + 1)
    );
}
