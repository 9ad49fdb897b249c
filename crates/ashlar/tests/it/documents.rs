//! Tests that the documents are correct and that the sources follow the rules of this project.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::harness::succeed;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the files below `directory` whose names end with `ending`.
fn files(directory: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).expect("a directory").flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files(&path, ending));
        } else if path.to_string_lossy().ends_with(ending) {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn sources() -> Vec<PathBuf> {
    files(&root().join("crates"), ".rs")
}

/// Every log line that docs/logs.md lists occurs in the sources.
#[test]
fn documented_log_lines_exist_in_the_sources() {
    let text = read(&root().join("docs/logs.md"));
    let lines = text.split("## Lines").nth(1).expect("the section exists");
    let first_cells =
        lines.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
    let words = first_cells.flat_map(|cell| cell.split('`').step_by(2).map(str::to_owned));
    let words: Vec<String> = words.filter(|words| !words.is_empty()).collect();
    assert!(words.len() > 50, "{words:?}");
    let source: String = sources()
        .iter()
        .filter(|path| !path.to_string_lossy().contains("test"))
        .map(|p| read(p))
        .collect();
    for words in words {
        assert!(source.contains(&format!("\"{words}\"")), "nobody says {words:?}");
    }
}

/// docs/health.md lists exactly the codes that `status` may show.
#[test]
fn every_health_code_is_documented() {
    let text = read(&root().join("docs/health.md"));
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let documented: BTreeSet<&str> = rows.collect();
    let monitor = root().join("crates/cluster/src/monitor");
    let source: String =
        ["status.rs", "pg_health.rs", "engine_health.rs", "prepared_room.rs", "restore.rs"]
            .iter()
            .map(|name| read(&monitor.join(name)))
            .collect();
    // A code is a quoted word next to its severity, after `code:`, or in a table of codes.
    let mut used = BTreeSet::new();
    let words: Vec<&str> = source.split('"').collect();
    for neighbours in words.windows(3) {
        let [before, word, after] = neighbours else { unreachable!("windows of three") };
        let is_word =
            word.contains('_') && word.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        let is_code = before.ends_with("code: ")
            || before.ends_with("=> ") && word.starts_with("pg_")
            || before.trim_end().ends_with("=> (") && word.starts_with("state_")
            || after.trim_start_matches(',').trim_start().starts_with("Severity::");
        if is_word && is_code {
            used.insert(*word);
        }
    }
    assert!(used.len() > 35, "{used:?}");
    assert_eq!(documented, used);
}

/// Every step of "Follow one write" and of the walks behind it is `path: symbol`, and the symbol is defined
/// in that file.
#[test]
fn the_architecture_names_files_and_symbols_that_exist() {
    let text = read(&root().join("ARCHITECTURE.md"));
    let section = text.split("## Follow one write").nth(1).expect("the section exists");
    let steps: Vec<&str> = section
        .lines()
        .map(str::trim_start)
        .filter(|line| line.starts_with(|c: char| c.is_ascii_digit()) && line.contains(".rs: "))
        .collect();
    assert!(steps.len() >= 8, "{steps:?}");
    for step in steps {
        let (path, rest) = step.split_once(".rs: ").expect("the filter saw it");
        let path = path.split_whitespace().last().expect("a path");
        let symbol = rest.split_whitespace().next().expect("a symbol");
        let name = symbol.rsplit("::").next().expect("a name");
        let source = read(&root().join(format!("crates/{path}.rs")));
        let kinds = ["fn ", "struct ", "enum ", "trait "];
        let mut defined = kinds.iter().any(|kind| {
            source.match_indices(&format!("{kind}{name}")).any(|(at, found)| {
                let next = source[at + found.len()..].chars().next();
                next.is_some_and(|c| !c.is_alphanumeric() && c != '_')
            })
        });
        // A variant of an enum.
        defined |= symbol.contains("::")
            && source.lines().any(|line| {
                let line = line.trim_start();
                line.strip_prefix(name)
                    .is_some_and(|rest| rest.starts_with([' ', ',', '(', '{']) || rest.is_empty())
            });
        assert!(defined, "{path}.rs defines no {symbol}: {step}");
    }
}

/// A crate uses only crates that are above it in the map of ARCHITECTURE.md.
#[test]
fn crates_use_only_crates_below_them() {
    let order = [
        "base",
        "format",
        "engine",
        "erasure",
        "placement",
        "blockstore",
        "objects",
        "bucket",
        "pg",
        "cluster",
        "volume",
        "node",
        "io",
        "sim",
        "client",
        "attach",
        "gateway",
        "ashlar",
    ];
    let rank: BTreeMap<&str, usize> =
        order.iter().enumerate().map(|(i, name)| (*name, i)).collect();
    let logic = &order[..12];
    for name in order {
        let manifest = read(&root().join("crates").join(name).join("Cargo.toml"));
        let manifest: toml::Table = manifest.parse().expect("TOML");
        for (used, _) in dependencies_of(&manifest, &["dependencies", "build-dependencies"]) {
            let Some(below) = rank.get(used.as_str()) else { continue };
            assert!(*below < rank[name], "{name} uses {used}, which lies above it");
            if logic.contains(&name) {
                assert!(logic.contains(&used.as_str()), "{name} is logic and uses {used}");
            }
        }
    }
}

#[test]
fn every_source_file_opens_with_its_purpose() {
    for path in sources() {
        let text = read(&path);
        let first = text.lines().next().unwrap_or_default();
        assert!(first.starts_with("//!"), "{} does not open with //!", path.display());
    }
}

#[test]
fn source_files_stay_readable() {
    for path in sources() {
        let text = read(&path);
        let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        let lines = code.lines().count();
        assert!(lines <= 1100, "{} has {lines} lines without tests", path.display());
        for (number, line) in text.lines().enumerate() {
            let place = format!("{}:{}", path.display(), number + 1);
            // Pictures and tables in the header may be wider.
            let width_max = if line.starts_with("//!") { 200 } else { 110 };
            assert!(line.chars().count() <= width_max, "{place} is too long");
            // The words are split, so that this file passes its own test.
            for word in [concat!("todo", "!("), concat!("FIX", "ME"), concat!("XX", "X")] {
                assert!(!line.contains(word), "{place} has {word}");
            }
        }
    }
}

#[test]
fn unsafe_code_says_why_it_is_sound() {
    let mut blocks = 0;
    for path in sources() {
        let text = read(&path);
        let lines: Vec<&str> = text.lines().collect();
        for (number, line) in lines.iter().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            if !code.contains(concat!("uns", "afe {")) && !code.contains(concat!("uns", "afe impl"))
            {
                continue;
            }
            blocks += 1;
            let place = format!("{}:{}", path.display(), number + 1);
            let allowed = ["/io/", "/attach/", "/client/", "/engine/src/rocks/", "/erasure/tests/"];
            assert!(allowed.iter().any(|home| place.contains(home)), "{place}: not its home");
            let before = &lines[number.saturating_sub(8)..number];
            let explained = before.iter().any(|line| line.contains("SAFETY:"));
            assert!(explained, "{place}: no SAFETY comment");
        }
    }
    assert!(blocks > 0, "the reactor has some");
}

/// No dependency is available only under a licence of the GPL type.
#[test]
fn every_licence_is_permissive() {
    let metadata = succeed(
        Command::new(env!("CARGO"))
            .args(["metadata", "--format-version=1", "--locked", "--all-features"])
            .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
            .current_dir(root()),
    );
    let metadata: Value = serde_json::from_str(&metadata).expect("JSON");
    let allowed = [
        "MIT",
        "MIT-0",
        "Apache-2.0",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "ISC",
        "Zlib",
        "0BSD",
        "Unicode-3.0",
        "Unlicense",
        "CC0-1.0",
        "BSL-1.0",
        "Apache-2.0 WITH LLVM-exception",
    ];
    let packages = metadata["packages"].as_array().expect("a list");
    assert!(packages.len() > 20);
    for package in packages {
        let name = package["name"].as_str().expect("a name");
        let licence = package["license"].as_str().unwrap_or("none");
        // Each AND part of the licence needs at least one allowed alternative.
        let fine = licence.replace('/', " OR ").split(" AND ").all(|part| {
            let part = part.trim_matches(['(', ')', ' ']);
            part.split(" OR ").any(|one| allowed.contains(&one.trim_matches(['(', ')', ' '])))
        });
        assert!(fine, "{name}: {licence}");
    }
}

/// The tables of dependencies that a manifest can have.
const ANY: &[&str] = &["dependencies", "dev-dependencies", "build-dependencies"];

/// Returns the entries of these dependency tables in a manifest, including those for single targets.
fn dependencies_of(table: &toml::Table, kinds: &[&str]) -> Vec<(String, toml::Value)> {
    let mut found = Vec::new();
    for (name, value) in table {
        let Some(inner) = value.as_table() else { continue };
        if kinds.contains(&name.as_str()) {
            found.extend(inner.iter().map(|(name, value)| (name.clone(), value.clone())));
        } else if !ANY.contains(&name.as_str()) {
            found.extend(dependencies_of(inner, kinds));
        }
    }
    found
}

#[test]
fn dependencies_of_a_target_are_found() {
    let manifest = "[dependencies]\na = 1\n[target.'cfg(unix)'.dependencies]\nb = 2\n\
                    [dev-dependencies]\nc = 3\n[target.x.dev-dependencies]\nd = 4\n";
    let manifest: toml::Table = manifest.parse().expect("TOML");
    let names = |kinds| {
        let found = dependencies_of(&manifest, kinds).into_iter();
        found.map(|(name, _)| name).collect::<BTreeSet<String>>().into_iter().collect::<String>()
    };
    assert_eq!(names(&["dependencies"]), "ab");
    assert_eq!(names(ANY), "abcd");
}

#[test]
fn every_dependency_has_its_reason() {
    let document = read(&root().join("docs/dependencies.md"));
    let cells = document.lines().filter(|line| line.starts_with("| `")).filter_map(|line| {
        line.split('|').nth(1) // The names, each in backticks.
    });
    let rows = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    let reasons: BTreeSet<&str> = rows.collect();
    let crates = fs::read_dir(root().join("crates")).expect("the crates").flatten();
    let crates: Vec<PathBuf> = crates.map(|entry| entry.path()).collect();
    let ours = |name: &str| crates.iter().any(|path| path.ends_with(name));
    let mut used = BTreeSet::new();
    for path in &crates {
        let manifest: toml::Table = read(&path.join("Cargo.toml")).parse().expect("TOML");
        for (name, value) in dependencies_of(&manifest, ANY) {
            let place = format!("{}: {name}", path.display());
            // Only the workspace manifest sets the version and the features of a dependency.
            let from_workspace = value.get("workspace").and_then(toml::Value::as_bool);
            assert_eq!(from_workspace, Some(true), "{place} has a version of its own");
            assert!(ours(&name) || reasons.contains(name.as_str()), "{place} has no reason");
            used.insert(name);
        }
    }
    for name in reasons {
        assert!(used.contains(name), "nobody uses {name}: docs/dependencies.md");
    }
    let manifest: toml::Table = read(&root().join("Cargo.toml")).parse().expect("TOML");
    for (name, _) in dependencies_of(&manifest, ANY) {
        assert!(used.contains(&name), "nobody uses {name}: Cargo.toml");
    }
}

/// All links between documents have targets that exist, and ARCHITECTURE.md links all pages of
/// docs/internals.
#[test]
fn links_in_documents_lead_somewhere() {
    let root = root();
    let mut documents = files(&root.join("docs"), ".md");
    for name in ["README.md", "ARCHITECTURE.md", "CHANGELOG.md"] {
        documents.push(root.join(name));
    }
    let mut links = 0;
    for document in documents {
        let text = read(&document);
        for part in text.split("](").skip(1) {
            let target = part.split([')', '#']).next().unwrap_or_default();
            if target.is_empty() || target.contains("://") {
                continue;
            }
            links += 1;
            let path = document.parent().expect("in a folder").join(target);
            assert!(path.exists(), "{} links to {target}", document.display());
        }
    }
    assert!(links > 5);
    let architecture = read(&root.join("ARCHITECTURE.md"));
    for page in files(&root.join("docs/internals"), ".md") {
        let name = page.file_name().expect("a file").to_string_lossy();
        let link = format!("](docs/internals/{name})");
        assert!(architecture.contains(&link), "ARCHITECTURE.md does not link {name}");
    }
}

/// Returns the parts of all names in a line of code: `BlockKey::new` has the parts block, key and new.
fn parts_of_names(line: &str) -> Vec<String> {
    let code = line.split("//").next().unwrap_or_default();
    // Text in quotes is not a name.
    let code: String = code.split('"').step_by(2).collect::<Vec<_>>().join(" ");
    // The name that RocksDB gave to its option.
    let code = code.replace("disable_wal", "");
    let mut parts = vec![String::new()];
    let mut before = ' ';
    for c in code.chars() {
        let begins = c.is_uppercase() && before.is_lowercase();
        if begins || !c.is_alphanumeric() {
            parts.push(String::new());
        }
        if c.is_alphanumeric() {
            parts.last_mut().expect("never empty").extend(c.to_lowercase());
        }
        before = c;
    }
    parts.retain(|part| !part.is_empty());
    parts
}

/// No name contains a word that the glossary rejects completely.
#[test]
fn rejected_words_are_not_used() {
    let glossary = read(&root().join("docs/glossary.md"));
    let rows = glossary.lines().filter(|line| line.starts_with("| "));
    let rejected: Vec<&str> = rows
        .flat_map(|row| row.rsplit('|').nth(1).unwrap_or_default().split('`').skip(1).step_by(2))
        .collect();
    assert!(rejected.len() >= 8, "{rejected:?}");
    for path in sources() {
        for (number, line) in read(&path).lines().enumerate() {
            let parts = parts_of_names(line);
            for word in &rejected {
                let word: Vec<&str> = word.split('_').collect();
                let used = parts.windows(word.len()).any(|window| window == word);
                assert!(!used, "{}:{} says {word:?}", path.display(), number + 1);
            }
        }
    }
}

/// Returns the names in calls of a macro with one argument, `mark` or `check`.
fn macro_names(source: &str, name: &str) -> Vec<String> {
    let call = format!("{name}!(");
    let calls = source.lines().filter_map(|line| {
        let (before, rest) = line.split_once(&call)?;
        let is_code = !before.contains("//") && !before.ends_with(['_', '`', '"']);
        is_code.then(|| rest.split(')').next().unwrap_or_default().to_owned())
    });
    calls.filter(|name| name.chars().all(|c| c.is_alphanumeric() || c == '_')).collect()
}

/// A mark in a rare branch shows that the branch is reached. Exactly one test checks each mark, and fails if
/// the mark is no longer reached.
#[test]
fn every_mark_is_checked_by_exactly_one_test_of_its_crate() {
    let mut mark_count = 0;
    for directory in fs::read_dir(root().join("crates")).expect("a directory").flatten() {
        let sources: Vec<String> =
            files(&directory.path().join("src"), ".rs").iter().map(|path| read(path)).collect();
        let names = |name: &str| -> Vec<String> {
            let mut names: Vec<String> =
                sources.iter().flat_map(|source| macro_names(source, name)).collect();
            names.sort();
            names
        };
        let (marks, checks) = (names("mark"), names("check"));
        assert_eq!(marks, checks, "marks and checks of {}", directory.path().display());
        mark_count += marks.len();
    }
    assert!(mark_count >= 6, "{mark_count}");
}
