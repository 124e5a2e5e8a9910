//! Where the model is that a user names: a folder, or `org/name[@revision]` in the Hugging Face cache.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use crate::{
    Model, ModelError,
    checkpoint::{INDEX_FILE, INDEX_LIMIT, Index, SINGLE_FILE, Source},
    error::quoted,
};

/// The Hugging Face cache of this user. Made from variables that the caller looks up, because nothing below the command
/// line reads the environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HubCache {
    /// The folder of `models--org--name`; `None` where no variable says.
    pub folder: Option<PathBuf>,
}

impl HubCache {
    /// Follows `HF_HUB_CACHE`, then `HF_HOME`, `XDG_CACHE_HOME`, and the home folder (`HOME`, or `USERPROFILE` on
    /// Windows), as Hugging Face's own library does. `variable` returns the value of an environment variable.
    pub fn from_variables(variable: impl Fn(&str) -> Option<OsString>) -> HubCache {
        let path = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let hub = |home: PathBuf| home.join("hub");
        let below_cache = |cache: PathBuf| cache.join("huggingface").join("hub");
        let folder = path("HF_HUB_CACHE")
            .or_else(|| path("HUGGINGFACE_HUB_CACHE"))
            .or_else(|| path("HF_HOME").map(hub))
            .or_else(|| path("XDG_CACHE_HOME").map(below_cache))
            .or_else(|| {
                path("HOME").or_else(|| path("USERPROFILE")).map(|home| below_cache(home.join(".cache")))
            });
        HubCache { folder }
    }
}

impl Model {
    /// The folder of the model that `argument` names: an existing folder itself, or the snapshot of
    /// `org/name[@revision]` in `cache` (revision: a branch, a tag or a commit; `main` if none is given) with
    /// `config.json` and every file of weights.
    pub fn resolve(argument: &str, cache: &HubCache) -> Result<PathBuf, ModelError> {
        let path = Path::new(argument);
        if path.is_dir() {
            return Ok(path.to_owned());
        }
        if path.exists() {
            return Err(ModelError::NotAFolder { found: quoted(argument) });
        }
        let unknown = || ModelError::UnknownModel { found: quoted(argument) };
        let name = RepositoryName::parse(argument).ok_or_else(unknown)?;
        let Some(folder) = &cache.folder else {
            return Err(ModelError::NoCache { repository: name.repository.to_owned() });
        };
        let snapshot =
            name.snapshot(&folder.join(format!("models--{}", name.repository.replace('/', "--"))))?;
        name.check_complete(&snapshot)?;
        Ok(snapshot)
    }
}

/// `org/name[@revision]`, known to hold nothing that could lead out of the cache.
struct RepositoryName<'a> {
    repository: &'a str,
    revision: Option<&'a str>,
}

impl<'a> RepositoryName<'a> {
    fn parse(argument: &'a str) -> Option<Self> {
        let (repository, revision) = match argument.split_once('@') {
            Some((repository, revision)) => (repository, Some(revision)),
            None => (argument, None),
        };
        let (owner, name) = repository.split_once('/')?;
        // A revision may have slashes (refs/pr/1).
        let sound = is_name(owner) && is_name(name) && revision.is_none_or(|r| r.split('/').all(is_name));
        sound.then_some(RepositoryName { repository, revision })
    }

    fn missing(&self, path: &Path) -> ModelError {
        ModelError::NotInCache {
            repository: self.repository.to_owned(),
            revision: self.revision.map(str::to_owned),
            missing: path.display().to_string(),
        }
    }

    /// The folder of the revision: what `refs` says for a branch or tag, else the revision as a commit.
    fn snapshot(&self, model: &Path) -> Result<PathBuf, ModelError> {
        let revision = self.revision.unwrap_or("main");
        let reference = model.join("refs").join(revision);
        let snapshots = model.join("snapshots");
        if !reference.is_file() {
            // Refs are files and may hold slashes; commits may not.
            let snapshot = snapshots.join(revision);
            let is_commit = is_name(revision) && snapshot.is_dir();
            return if is_commit { Ok(snapshot) } else { Err(self.missing(&reference)) };
        }
        let source = Source::Folder(&model.join("refs"));
        let bytes = source.read(revision, 256, self.repository)?;
        let commit = String::from_utf8_lossy(&bytes);
        let commit = commit.trim();
        if !is_name(commit) {
            return Err(ModelError::Field {
                file: reference.display().to_string(),
                field: "commit".to_owned(),
                found: quoted(commit),
                wanted: "the name of a folder under snapshots".to_owned(),
            });
        }
        let snapshot = snapshots.join(commit);
        if snapshot.is_dir() { Ok(snapshot) } else { Err(self.missing(&snapshot)) }
    }

    /// Downloads are resumed and may end anywhere: every file must be there.
    fn check_complete(&self, snapshot: &Path) -> Result<(), ModelError> {
        let source = Source::Folder(snapshot);
        let mut needed = vec!["config.json".to_owned()];
        if source.has(INDEX_FILE) {
            let bytes = source.read(INDEX_FILE, INDEX_LIMIT, self.repository)?;
            needed.extend(Index::parse(&source.label(INDEX_FILE), &bytes)?.shards);
        } else {
            needed.push(SINGLE_FILE.to_owned());
        }
        match needed.iter().find(|name| !source.has(name)) {
            None => Ok(()),
            Some(name) => Err(self.missing(&snapshot.join(name))),
        }
    }
}

/// Word characters, dots and hyphens; not `..` and not `.`.
fn is_name(name: &str) -> bool {
    !name.is_empty()
        && !name.contains("..")
        && name != "."
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::testing::{Spec, write_checkpoint};

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    /// A cache that holds org/model, its `main` pointing to a whole snapshot of two shards.
    fn cache() -> (tempfile::TempDir, HubCache, PathBuf) {
        let temporary = tempfile::tempdir().unwrap();
        let model = temporary.path().join("models--org--model");
        let snapshot = model.join("snapshots").join(COMMIT);
        write_checkpoint(&snapshot, &Spec { shards: 2, ..Spec::tiny() }).unwrap();
        fs::create_dir_all(model.join("refs/refs/pr")).unwrap();
        fs::write(model.join("refs/main"), format!("{COMMIT}\n")).unwrap();
        fs::write(model.join("refs/refs/pr/1"), COMMIT).unwrap();
        let cache = HubCache { folder: Some(temporary.path().to_owned()) };
        (temporary, cache, snapshot)
    }

    #[test]
    fn a_folder_is_itself() {
        let folder = tempfile::tempdir().unwrap();
        let argument = folder.path().to_str().unwrap();
        assert_eq!(Model::resolve(argument, &HubCache::default()).unwrap(), folder.path());
    }

    #[test]
    fn a_name_is_its_snapshot() {
        let (_temporary, cache, snapshot) = cache();
        let by_commit = format!("org/model@{COMMIT}");
        for argument in ["org/model", "org/model@main", "org/model@refs/pr/1", &by_commit] {
            assert_eq!(Model::resolve(argument, &cache).unwrap(), snapshot, "{argument}");
        }
        Model::open(&snapshot).unwrap();
    }

    #[test]
    fn what_is_missing_is_named_with_the_command_that_fetches_it() {
        let (temporary, cache, snapshot) = cache();
        let missing = |argument: &str| match Model::resolve(argument, &cache).unwrap_err() {
            ModelError::NotInCache { missing, .. } => PathBuf::from(missing),
            other => panic!("{other}"),
        };
        assert_eq!(missing("org/other"), temporary.path().join("models--org--other/refs/main"));
        assert_eq!(missing("org/model@v2"), temporary.path().join("models--org--model/refs/v2"));
        fs::remove_file(snapshot.join("model-00002-of-00002.safetensors")).unwrap();
        assert_eq!(missing("org/model"), snapshot.join("model-00002-of-00002.safetensors"));
        fs::remove_file(snapshot.join("model.safetensors.index.json")).unwrap();
        assert_eq!(missing("org/model"), snapshot.join("model.safetensors"));
        fs::remove_file(snapshot.join("config.json")).unwrap();
        assert_eq!(missing("org/model"), snapshot.join("config.json"));
        fs::remove_dir_all(&snapshot).unwrap();
        assert_eq!(missing("org/model"), snapshot);
        let shown = Model::resolve("org/model@v2", &cache).unwrap_err().to_string();
        assert!(shown.ends_with("hf download org/model --revision v2"), "{shown}");
    }

    #[test]
    fn other_arguments_are_refused() {
        let (temporary, cache, _) = cache();
        for argument in [
            "",
            "model",
            "org/",
            "/model",
            "org/model/x",
            "../model",
            "org/..",
            "org/a..b",
            "org/mo del",
            "org/model@",
            "org/model@../main",
            "org/model@a//b",
            "./nowhere",
            "/nowhere/at/all",
            "org\\model",
            "org/mod\u{e9}l",
        ] {
            let error = Model::resolve(argument, &cache).unwrap_err();
            assert_eq!(error, ModelError::UnknownModel { found: argument.to_owned() });
        }
        let file = temporary.path().join("models--org--model/refs/main").display().to_string();
        assert_eq!(Model::resolve(&file, &cache).unwrap_err(), ModelError::NotAFolder { found: file });
    }

    #[test]
    fn a_reference_cannot_lead_out_of_the_cache() {
        let (temporary, cache, _) = cache();
        let reference = temporary.path().join("models--org--model/refs/main");
        for commit in ["../../elsewhere", "/etc", "", ".."] {
            fs::write(&reference, commit).unwrap();
            let error = Model::resolve("org/model", &cache).unwrap_err();
            assert!(matches!(&error, ModelError::Field { found, .. } if found == commit), "{error}");
        }
    }

    #[test]
    fn the_cache_is_where_the_variables_say() {
        let folder = |set: &[(&str, &str)]| {
            let lookup =
                |name: &str| set.iter().find(|(known, _)| *known == name).map(|(_, v)| OsString::from(v));
            HubCache::from_variables(lookup).folder.map(|path| path.to_str().unwrap().replace('\\', "/"))
        };
        let home = ("HOME", "/h");
        assert_eq!(folder(&[]), None);
        assert_eq!(folder(&[home]).unwrap(), "/h/.cache/huggingface/hub");
        assert_eq!(folder(&[home, ("XDG_CACHE_HOME", "/x")]).unwrap(), "/x/huggingface/hub");
        assert_eq!(folder(&[home, ("XDG_CACHE_HOME", "/x"), ("HF_HOME", "/f")]).unwrap(), "/f/hub");
        assert_eq!(folder(&[home, ("HF_HOME", "/f"), ("HF_HUB_CACHE", "/c")]).unwrap(), "/c");
        assert_eq!(folder(&[home, ("HF_HUB_CACHE", "")]).unwrap(), "/h/.cache/huggingface/hub");
        let error = Model::resolve("org/model", &HubCache::default()).unwrap_err();
        assert_eq!(error, ModelError::NoCache { repository: "org/model".to_owned() });
    }
}
