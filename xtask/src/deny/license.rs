/// Whether a license expression can be kept with the licenses that are allowed.
///
/// Reads `OR` (also written `/`), `AND`, `WITH` and parentheses; whatever else it meets, it refuses.
pub(super) fn is_accepted(expression: &str, is_allowed: &dyn Fn(&str) -> bool) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut reader = Reader { words: &words, is_allowed };
    let accepted = reader.any();
    accepted == Some(true) && reader.words.is_empty()
}

/// Goes through the words; nothing where they are no expression.
struct Reader<'a> {
    words: &'a [&'a str],
    is_allowed: &'a dyn Fn(&str) -> bool,
}

impl<'a> Reader<'a> {
    fn any(&mut self) -> Option<bool> {
        let mut accepted = self.all()?;
        while self.takes("OR") {
            accepted |= self.all()?;
        }
        Some(accepted)
    }

    fn all(&mut self) -> Option<bool> {
        let mut accepted = self.one()?;
        while self.takes("AND") {
            accepted &= self.one()?;
        }
        Some(accepted)
    }

    fn one(&mut self) -> Option<bool> {
        if self.takes("(") {
            let accepted = self.any()?;
            return self.takes(")").then_some(accepted);
        }
        let license = self.word()?;
        if !self.takes("WITH") {
            return Some((self.is_allowed)(license));
        }
        let exception = self.word()?;
        Some((self.is_allowed)(&format!("{license} WITH {exception}")))
    }

    fn takes(&mut self, word: &str) -> bool {
        let taken = self.words.first() == Some(&word);
        if taken {
            self.words = &self.words[1..];
        }
        taken
    }

    fn word(&mut self) -> Option<&'a str> {
        let (&word, rest) = self.words.split_first()?;
        self.words = rest;
        (!["OR", "AND", "WITH", "(", ")"].contains(&word)).then_some(word)
    }
}
