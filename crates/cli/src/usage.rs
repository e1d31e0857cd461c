//! Mistakes in arguments, each in one line: what was read, then what would be accepted.

use std::error::Error;
use std::ops::RangeInclusive;
use std::str::FromStr;

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// What clap refused of the arguments of `command`.
pub(crate) fn message(error: &clap::Error, command: &clap::Command) -> String {
    let usage = words(error, ContextKind::InvalidArg);
    let argument = usage.split(" <").next().unwrap_or_default();
    let name = command.get_bin_name().unwrap_or(command.get_name());
    match error.kind() {
        ErrorKind::ValueValidation => {
            let accepted = error.source().map(ToString::to_string).unwrap_or_default();
            let value = format!("{:?}", words(error, ContextKind::InvalidValue));
            // Some of those who read a value say what it was, too.
            let accepted = accepted.strip_prefix(&format!("{value}: ")).unwrap_or(&accepted);
            format!("{argument} is {value}; {accepted}")
        }
        ErrorKind::InvalidValue => {
            let accepted = match words(error, ContextKind::ValidValue) {
                any if any.is_empty() && usage == argument => "expected one that is not empty".to_owned(),
                any if any.is_empty() => format!("expected {usage}"),
                values => format!("expected {values}"),
            };
            match words(error, ContextKind::InvalidValue) {
                missing if missing.is_empty() => format!("{argument} has no value; {accepted}"),
                value => format!("{argument} is {value:?}; {accepted}"),
            }
        }
        ErrorKind::UnknownArgument => match words(error, ContextKind::SuggestedArg) {
            _ if !argument.starts_with('-') && command.get_arguments().any(clap::Arg::is_last_set) => {
                format!("{argument} is unknown to {name}; expected -- before the command: {name} -- {argument} ...")
            }
            similar if similar.starts_with("--") => format!("{argument} is unknown to {name}; did you mean {similar}?"),
            _ => format!("{argument} is unknown to {name}; expected {}", options(command)),
        },
        ErrorKind::ArgumentConflict if words(error, ContextKind::PriorArg) != usage => {
            let prior = words(error, ContextKind::PriorArg);
            let prior = prior.split(" <").next().unwrap_or_default();
            format!("{argument} is given with {prior}; expected one of them")
        }
        ErrorKind::ArgumentConflict => format!("{argument} is given more than once; expected once"),
        ErrorKind::InvalidSubcommand => {
            let offered = command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set());
            let names: Vec<&str> = offered.map(clap::Command::get_name).collect();
            let subcommand = words(error, ContextKind::InvalidSubcommand);
            let similar = words(error, ContextKind::SuggestedSubcommand);
            if !similar.is_empty() {
                return format!("{subcommand} is unknown to {name}; did you mean {similar}?");
            }
            format!("{subcommand} is unknown to {name}; expected {}", names.join(", "))
        }
        ErrorKind::MissingRequiredArgument => {
            format!("{argument} is missing; expected {}", words(error, ContextKind::Usage).replace("Usage: ", ""))
        }
        ErrorKind::InvalidUtf8 => "an argument is not UTF-8; expected other bytes in file names only".to_owned(),
        // Clap knows more kinds than this command can meet; its own first line serves them.
        _ => {
            let text = error.to_string();
            let first = text.lines().next().unwrap_or_default();
            first.strip_prefix("error: ").unwrap_or(first).to_owned()
        }
    }
}

/// Reads what is a number. Its range is for others to check.
pub(crate) fn number<T: FromStr>(accepted: &'static str) -> impl Fn(&str) -> Result<T, &'static str> + Clone {
    move |text| text.parse().map_err(|_| accepted)
}

/// Reads a whole number of a range.
pub(crate) fn whole<T: FromStr + PartialOrd + Clone>(
    range: RangeInclusive<T>,
    accepted: &'static str,
) -> impl Fn(&str) -> Result<T, &'static str> + Clone {
    move |text| text.parse().ok().filter(|number| range.contains(number)).ok_or(accepted)
}

fn words(error: &clap::Error, kind: ContextKind) -> String {
    match error.get(kind) {
        Some(ContextValue::Strings(values)) => values.join(", "),
        Some(value) => value.to_string(),
        None => String::new(),
    }
}

fn options(command: &clap::Command) -> String {
    let names = command.get_arguments().filter_map(|option| Some(format!("--{}", option.get_long()?)));
    let last = command.get_arguments().filter(|argument| argument.is_last_set());
    let last = last.map(|argument| format!("-- {}...", argument.get_id().as_str().to_uppercase()));
    names.chain(last).collect::<Vec<_>>().join(", ")
}
