//! Finding and opening a model: a folder, a name in the Hugging Face cache, a random one, or the demo model inside this binary.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use lily_model::synth::{Routing, Synth};
use lily_model::{HubCache, MemoryModel, Model, Preset};
use lily_text::{SyntheticTokenizer, TextModel, TextParts};

macro_rules! demo_file {
    ($name:literal) => {
        include_bytes!(concat!("../../../../assets/demo/", $name))
    };
}

/// What stands in front of a random model's preset.
const SYNTH: &str = "synth:";

const DEMO_NAME: &str = "lily-demo";
const DEMO_CONFIG: &[u8] = demo_file!("config.json");
const DEMO_GENERATION_CONFIG: &[u8] = demo_file!("generation_config.json");
const DEMO_WEIGHTS: &[u8] = demo_file!("model.safetensors");
const DEMO_TOKENIZER: &[u8] = demo_file!("tokenizer.json");
const DEMO_TOKENIZER_CONFIG: &[u8] = demo_file!("tokenizer_config.json");
/// ChatML with reasoning and tool calls, for models that have no template of their own.
pub(crate) const DEMO_TEMPLATE: &str = include_str!("../../../../assets/demo/chat_template.jinja");

/// A model with its text side.
pub(crate) struct LoadedModel {
    pub(crate) model: Arc<Model>,
    pub(crate) text: Arc<TextModel>,
    /// As `/v1/models` shows it.
    pub(crate) name: String,
    /// Where its weights are.
    pub(crate) source: WeightSource,
}

/// Where weights are, so that a model that was let go can be opened again: a name was looked up once, and stands for the same
/// folder ever after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WeightSource {
    /// In this binary.
    Demo,
    /// Nowhere: they are made.
    Random(String),
    /// In a folder.
    Folder(PathBuf),
}

impl WeightSource {
    /// Opens them.
    pub(crate) fn open(&self) -> Result<Model> {
        match self {
            WeightSource::Demo => demo_weights(),
            WeightSource::Random(argument) => Ok(random(argument, Routing::Uniform)?.0),
            WeightSource::Folder(folder) => Ok(Model::open(folder)?),
        }
    }
}

impl LoadedModel {
    /// The built-in one.
    pub(crate) fn is_demo(&self) -> bool {
        self.source == WeightSource::Demo
    }
}

/// Opens the weights only, and says what they are called.
pub(crate) fn load_weights(argument: Option<&str>) -> Result<(Model, String)> {
    load_weights_routed(argument, Routing::Uniform)
}

/// The same, where a random model may spread tokens unevenly over its experts.
pub(crate) fn load_weights_routed(argument: Option<&str>, routing: Routing) -> Result<(Model, String)> {
    match argument {
        Some(argument) if argument.starts_with(SYNTH) => {
            let (model, _) = random(argument, routing)?;
            Ok((model, argument.to_owned()))
        }
        _ if routing != Routing::Uniform => bail!(
            "--routing skewed is for random models, --model synth:PRESET; {} spreads tokens as it was taught",
            argument.unwrap_or("the built-in demo model")
        ),
        Some(argument) => Ok((Model::open(&folder_of(argument)?)?, name_of(argument))),
        None => Ok((demo_weights()?, DEMO_NAME.to_owned())),
    }
}

/// Opens a model and its text side, both from the folder that the name stood for when it was looked up.
pub(crate) fn load(argument: Option<&str>) -> Result<LoadedModel> {
    let (model, name, text, source) = match argument {
        Some(argument) if argument.starts_with(SYNTH) => {
            let (model, tokenizer) = random(argument, Routing::Uniform)?;
            let text = synthetic_text(argument, tokenizer)?;
            (model, argument.to_owned(), text, WeightSource::Random(argument.to_owned()))
        }
        Some(argument) => {
            let folder = folder_of(argument)?;
            let model = Model::open(&folder)?;
            let text = TextModel::from_dir(&folder).with_context(|| format!("--model {argument}"))?;
            (model, name_of(argument), text, WeightSource::Folder(folder))
        }
        None => (demo_weights()?, DEMO_NAME.to_owned(), demo_text()?, WeightSource::Demo),
    };
    let (rows, size) = (model.geometry.vocab, text.tokenizer().size());
    anyhow::ensure!(
        size <= rows,
        "the tokenizer has {size} tokens and the model only {rows} rows of embedding (vocab_size): they do not belong \
         together; use the tokenizer.json that came with the checkpoint"
    );
    Ok(LoadedModel { model: Arc::new(model), text: Arc::new(text), name, source })
}

/// The folder of a model that has one, and what the model is called.
pub(crate) fn folder(argument: &str) -> Result<(PathBuf, String)> {
    if argument.starts_with(SYNTH) {
        bail!("a random model has no files: `lily synth --preset PRESET --out DIR` writes them");
    }
    Ok((folder_of(argument)?, name_of(argument)))
}

/// Opens a model, and its text side where it has one of its own: a random model has none, and a folder may hold no tokenizer.
pub(crate) fn load_with_any_text(
    argument: Option<&str>,
) -> Result<(Arc<Model>, String, Option<Arc<TextModel>>)> {
    let has_text = match argument {
        Some(argument) if argument.starts_with(SYNTH) => false,
        Some(argument) => folder_of(argument)?.join("tokenizer.json").exists(),
        None => true,
    };
    if has_text {
        let loaded = load(argument)?;
        return Ok((loaded.model, loaded.name, Some(loaded.text)));
    }
    let (model, name) = load_weights(argument)?;
    Ok((Arc::new(model), name, None))
}

/// Sizes of a known model.
pub(crate) fn preset(name: &str) -> Result<Preset> {
    Preset::named(name).with_context(|| {
        let names: Vec<&str> = Preset::all().iter().map(|p| p.name).collect();
        format!("--preset {name} is not known; known are {}", names.join(", "))
    })
}

/// The random model of `synth:PRESET` or `synth:PRESET:SEED`: what `lily synth` writes, made where it is needed.
fn random(argument: &str, routing: Routing) -> Result<(Model, Option<SyntheticTokenizer>)> {
    let mut parts = argument.trim_start_matches(SYNTH).splitn(2, ':');
    let (name, seed) = (parts.next().unwrap_or_default(), parts.next());
    let names = || Preset::all().iter().map(|p| p.name).collect::<Vec<_>>().join(", ");
    let preset = Preset::named(name).with_context(|| {
        format!(
            "--model {argument}: wanted synth:PRESET or synth:PRESET:SEED, where PRESET is one of {}",
            names()
        )
    })?;
    let seed = seed.unwrap_or("0").parse::<u64>();
    let seed = seed.with_context(|| format!("--model {argument}: wanted a whole number as the seed"))?;
    let tokenizer = SyntheticTokenizer::new(preset.geometry.vocab);
    let synth = Synth::with_routing(preset, seed, routing).with_context(|| format!("--model {argument}"))?;
    let end_tokens = tokenizer.as_ref().map_or(&[][..], |tokenizer| &tokenizer.end_tokens);
    Ok((Model::random(argument, &synth, end_tokens), tokenizer))
}

fn synthetic_text(argument: &str, tokenizer: Option<SyntheticTokenizer>) -> Result<TextModel> {
    let tokenizer = tokenizer.with_context(|| format!("--model {argument} has no room for a tokenizer"))?;
    let mut json = Vec::new();
    tokenizer.write_json(&mut json)?;
    let parts = TextParts {
        tokenizer_json: &json,
        tokenizer_config_json: Some(&tokenizer.tokenizer_config_json),
        chat_template: Some(DEMO_TEMPLATE),
    };
    TextModel::from_parts(parts).with_context(|| format!("--model {argument}"))
}

fn folder_of(argument: &str) -> Result<PathBuf> {
    Ok(Model::resolve(argument, &HubCache::from_variables(|name| std::env::var_os(name)))?)
}

fn demo_text() -> Result<TextModel> {
    let parts = TextParts {
        tokenizer_json: DEMO_TOKENIZER,
        tokenizer_config_json: Some(DEMO_TOKENIZER_CONFIG),
        chat_template: Some(DEMO_TEMPLATE),
    };
    TextModel::from_parts(parts).context("the built-in demo model")
}

fn demo_weights() -> Result<Model> {
    let parts = MemoryModel {
        config_json: Cow::Borrowed(DEMO_CONFIG),
        generation_config_json: Some(Cow::Borrowed(DEMO_GENERATION_CONFIG)),
        files: vec![(Cow::Borrowed("model.safetensors"), Cow::Borrowed(DEMO_WEIGHTS))],
    };
    Model::from_memory(parts).context("the built-in demo model")
}

/// `org/name@revision` without the revision; of a path the last part.
fn name_of(argument: &str) -> String {
    let path = std::path::Path::new(argument);
    if path.is_dir() {
        let whole = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        return whole.file_name().map_or_else(|| argument.to_owned(), |n| n.to_string_lossy().into_owned());
    }
    argument.split('@').next().unwrap_or(argument).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_models_are_named_by_preset_and_seed() {
        let (one, _) = load_weights(Some("synth:layer4")).unwrap();
        let (other, name) = load_weights(Some("synth:layer4:7")).unwrap();
        assert_eq!(name, "synth:layer4:7");
        let norm = |model: &Model| model.checkpoint.bytes(model.weights.final_norm.tensor).to_vec();
        assert_ne!(norm(&one), norm(&other));
        for (argument, words) in
            [("synth:", "layer4"), ("synth:layer5", "synth:PRESET"), ("synth:layer4:x", "a whole number")]
        {
            let refused = format!("{:#}", load_weights(Some(argument)).unwrap_err());
            assert!(refused.contains(words) && refused.contains(argument), "{refused}");
        }
    }
}
