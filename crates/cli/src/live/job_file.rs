use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Read};
use std::path::Path;

use pollux_api::{in_plain_words, read_json};
use pollux_job::JobSpec;
use serde::de::{DeserializeOwned, IgnoredAny};

use super::LiveError;

/// A job in a file, in the words of the REST interface. What is left out may be given by options.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct JobFile {
    pub(super) spec: JobSpec,
    /// What the file says anything about.
    keys: BTreeSet<String>,
}

impl JobFile {
    /// What a file says, if one is given.
    pub(super) fn given(file: Option<&Path>) -> Result<Self, LiveError> {
        file.map_or_else(|| Ok(Self::default()), Self::read)
    }

    /// Reads a file by its ending, or YAML from stdin if it is called `-`. Folders in it are relative to it.
    fn read(file: &Path) -> Result<Self, LiveError> {
        let refused = |line, reason| LiveError::JobFile { file: file.to_owned(), line, reason };
        let accepted = "expected .yaml, .yml, .toml and .json, or - for YAML or JSON from stdin";
        let read = |from: &mut dyn Read| io::read_to_string(from.take(BYTES_MAX + 1));
        let (text, syntax) = if file == Path::new("-") {
            (read(&mut io::stdin()), Syntax::Yaml)
        } else {
            let syntax = match file.extension().and_then(|ending| ending.to_str()) {
                Some("yaml" | "yml") => Syntax::Yaml,
                Some("toml") => Syntax::Toml,
                Some("json") => Syntax::Json,
                Some(_) | None => return Err(refused(None, format!("no known ending; {accepted}"))),
            };
            (fs::File::open(file).and_then(|mut open| read(&mut open)), syntax)
        };
        let text = text.map_err(|error| refused(None, format!("{error}; expected a file that can be read")))?;
        if text.len() as u64 > BYTES_MAX {
            return Err(refused(None, format!("more than {BYTES_MAX} bytes; expected fewer")));
        }
        let mut job = Self::parse(&text, syntax).map_err(|(line, reason)| refused(line, reason))?;
        if let Some(home) = file.parent().filter(|_| job.says("working_dir")) {
            job.spec.working_dir = home.join(&job.spec.working_dir);
        }
        Ok(job)
    }

    /// Whether the file says anything about a field.
    pub(super) fn says(&self, field: &str) -> bool {
        self.keys.contains(field)
    }

    fn parse(text: &str, syntax: Syntax) -> Result<Self, (Option<usize>, String)> {
        let spec = syntax.read(text)?;
        let keys: BTreeMap<String, IgnoredAny> = syntax.read(text)?;
        Ok(Self { spec, keys: keys.into_keys().collect() })
    }
}

/// Far above any job.
const BYTES_MAX: u64 = 1 << 20;

#[derive(Clone, Copy, Debug)]
enum Syntax {
    Yaml,
    Toml,
    Json,
}

impl Syntax {
    fn read<T: DeserializeOwned>(self, text: &str) -> Result<T, (Option<usize>, String)> {
        let one_line = |reason: &str| in_plain_words(reason.trim_end()).replace('\n', "; ");
        match self {
            Self::Yaml => serde_norway::from_str(text)
                .map_err(|error| (error.location().map(|it| it.line()), one_line(without_place(&error.to_string())))),
            Self::Toml => toml::from_str(text).map_err(|error| {
                let line = error.span().map(|span| 1 + text[..span.start].matches('\n').count());
                (line, one_line(error.message()))
            }),
            Self::Json => read_json(text.as_bytes())
                .map_err(|(error, reason)| (Some(error.line()), one_line(without_place(&reason)))),
        }
    }
}

/// What a parser says, without the place, which we tell before it.
fn without_place(message: &str) -> &str {
    message.rsplit_once(" at line ").map_or(message, |(reason, _)| reason)
}

#[cfg(test)]
mod tests {
    use pollux_job::{Flexibility, Work};
    use proptest::prelude::*;
    use proptest::sample::{Index, select};

    use super::*;

    #[test]
    fn the_same_job_in_three_syntaxes() {
        let yaml = "name: resnet\ncommand: [python, train.py]\nenv: {SEED: '1'}\nwork: {epochs: 90}\n\
            flexibility: rigid\nreplicas: 4\n";
        let toml = "name = 'resnet'\ncommand = ['python', 'train.py']\nenv.SEED = '1'\nwork.epochs = 90\n\
            flexibility = 'rigid'\nreplicas = 4\n";
        let json = r#"{"name": "resnet", "command": ["python", "train.py"], "env": {"SEED": "1"},
            "work": {"epochs": 90}, "flexibility": "rigid", "replicas": 4}"#;
        let job = JobFile::parse(yaml, Syntax::Yaml).unwrap();
        assert_eq!(job.spec.command, ["python", "train.py"]);
        assert_eq!((job.spec.work, job.spec.flexibility), (Some(Work::Epochs(90)), Flexibility::Rigid));
        assert!(job.says("replicas") && !job.says("replicas_min"));
        assert_eq!(JobFile::parse(toml, Syntax::Toml).unwrap(), job);
        assert_eq!(JobFile::parse(json, Syntax::Json).unwrap(), job);
        assert_eq!(JobFile::parse(json, Syntax::Yaml).unwrap(), job);
    }

    #[test]
    fn a_file_that_is_too_long_is_refused_and_not_cut() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("job.yaml");
        let long = |bytes: u64| fs::write(&file, "name: a\n".to_owned() + &"#".repeat(bytes as usize - 8)).unwrap();
        long(BYTES_MAX);
        assert_eq!(JobFile::read(&file).unwrap().spec.name, "a");
        long(BYTES_MAX + 1);
        let refused = JobFile::read(&file).unwrap_err().to_string();
        assert!(refused.ends_with("job.yaml: more than 1048576 bytes; expected fewer"), "{refused}");
    }

    #[test]
    fn mistakes_are_told_with_their_line() {
        let refused = |text: &str, syntax| JobFile::parse(text, syntax).unwrap_err();
        for (text, syntax) in [
            ("name: a\ngpuz: 4\n", Syntax::Yaml),
            ("name = 'a'\ngpuz = 4\n", Syntax::Toml),
            ("{\"name\": \"a\",\n\"gpuz\": 4}", Syntax::Json),
        ] {
            let (line, reason) = refused(text, syntax);
            assert_eq!(line, Some(2), "{reason}");
            assert!(reason.contains("unknown field `gpuz`, expected one of `name`, `owner`"), "{reason}");
        }
        let (line, reason) = refused("name: a\ncommand: python train.py\n", Syntax::Yaml);
        assert!(line == Some(2) && reason.contains("expected a list"), "{line:?} {reason}");
        let (_, reason) = refused("work: {epochs: 1, baseline_steps: 2}", Syntax::Yaml);
        assert!(reason.contains("expected either epochs or baseline_steps"), "{reason}");
        assert!(refused("name: [", Syntax::Yaml).0.is_some());
    }

    const YAML: &str = "name: résnet\ncommand: [python, train.py]\nenv: {SEED: '1'}\nwork: {epochs: 90}\n";
    const TOML: &str = "name = 'résnet'\ncommand = ['python', 'train.py']\nenv.SEED = '1'\nwork.epochs = 90\n";
    const JSON: &str = r#"{"name": "résnet", "command": ["python"], "env": {"SEED": "1"}, "work": {"epochs": 9}}"#;

    proptest! {
        #[test]
        fn whatever_a_file_holds_it_is_read_or_refused_in_a_line(
            (text, syntax) in select(vec![(YAML, Syntax::Yaml), (TOML, Syntax::Toml), (JSON, Syntax::Json)]),
            changes in prop::collection::vec((any::<Index>(), 0..6_usize, snippets()), 1..4),
        ) {
            let mut letters: Vec<char> = text.chars().collect();
            for (at, removed, inserted) in changes {
                let at = at.index(letters.len() + 1);
                let end = letters.len().min(at + removed);
                letters.splice(at..end, inserted.chars());
            }
            if let Err((_, reason)) = JobFile::parse(&letters.into_iter().collect::<String>(), syntax) {
                prop_assert!(!reason.is_empty() && !reason.contains('\n'), "{reason:?}");
            }
        }
    }

    /// What tells the syntaxes apart, what is too much, and anything else.
    fn snippets() -> impl Strategy<Value = String> {
        let words = [
            "\n",
            ": ",
            " = ",
            "{",
            "}",
            "[",
            "]",
            "'",
            "\"",
            "&a ",
            "*a",
            "<<: ",
            "!!binary ",
            "---\n",
            "...\n",
            "\t",
            "#",
            "|\n",
            "> ",
            "%YAML 9\n",
            "\0",
            "\r",
            "\u{feff}",
            "\u{2028}",
            "nan",
            "inf",
            ".inf",
            "1e999",
            "-1",
            "~",
            "99999999999999999999",
            "gpus: 4\n",
            "[[x]]\n",
            "../../x",
            "name",
            "é",
        ];
        prop_oneof![
            4 => select(words.to_vec()).prop_map(str::to_owned),
            1 => (select(vec!["[", "{", "- ", "a.", "[["]), 1..2_000_usize).prop_map(|(word, count)| word.repeat(count)),
            1 => "\\PC{0,4}",
            1 => Just(String::new()),
        ]
    }
}
