//! A report before it has a form: sections of sentences and tables. Terminal, Markdown and page render any of them
//! without knowing what it is about.

use crate::Table;

/// What a reader has before them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// A terminal: what matters most comes last, and long lists are cut.
    Screen,
    /// A document: what matters most comes first, and everything is there.
    Page,
}

/// A part of a report with a title.
#[derive(Clone, Debug, PartialEq)]
pub struct Section {
    /// What it belongs to; pages place their figures by it.
    pub topic: Topic,
    /// Its title.
    pub title: String,
    /// Its rank among sections.
    pub level: Level,
    /// What it holds, in order.
    pub blocks: Vec<Block>,
}

/// What a section belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topic {
    /// The result in a few lines.
    Verdict,
    /// The findings.
    Findings,
    /// Cases that did not finish.
    Unfinished,
    /// All cases.
    Cases,
    /// A group of cases that differ only in workers, by its place in the report.
    Group(usize),
    /// One case.
    Case,
    /// The command and the machine.
    About,
}

/// A section's rank among sections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// A section of its own.
    Chapter,
    /// Details of the one before; a page folds them.
    Detail,
}

/// A piece of a section.
#[derive(Clone, Debug, PartialEq)]
pub enum Block {
    /// Words about what follows.
    Paragraph(String),
    /// Sentences that do not depend on each other.
    List(Vec<String>),
    /// Sentences in order of importance, each with what to do about it.
    Numbered(Vec<Item>),
    /// Names and what belongs to them.
    Facts(Vec<(String, String)>),
    /// A table.
    Table(Table),
    /// Something to be copied as it is.
    Code(String),
}

/// A sentence, and what to do about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    /// The sentence.
    pub text: String,
    /// What to do.
    pub advice: String,
}

impl Section {
    /// A section without content.
    pub fn new(topic: Topic, title: impl Into<String>) -> Self {
        Self { topic, title: title.into(), level: Level::Chapter, blocks: Vec::new() }
    }

    /// Marks it as details of the one before.
    pub fn detail(mut self) -> Self {
        self.level = Level::Detail;
        self
    }

    /// Adds words about what follows.
    pub fn say(mut self, text: impl Into<String>) -> Self {
        self.blocks.push(Block::Paragraph(text.into()));
        self
    }

    /// Adds sentences, if there are any.
    pub fn list(mut self, sentences: impl IntoIterator<Item = String>) -> Self {
        let sentences: Vec<String> = sentences.into_iter().collect();
        if !sentences.is_empty() {
            self.blocks.push(Block::List(sentences));
        }
        self
    }

    /// Adds a block.
    pub fn with(mut self, block: Block) -> Self {
        self.blocks.push(block);
        self
    }

    /// The same in other words.
    pub fn reworded(self, reword: fn(&str) -> String) -> Self {
        let blocks = self.blocks.into_iter().map(|block| match block {
            Block::Paragraph(text) => Block::Paragraph(reword(&text)),
            Block::List(texts) => Block::List(texts.iter().map(|text| reword(text)).collect()),
            Block::Facts(facts) => {
                Block::Facts(facts.into_iter().map(|(name, fact)| (name, reword(&fact))).collect())
            }
            Block::Table(table) => Block::Table(table.reworded(reword)),
            other => other,
        });
        Self { title: reword(&self.title), blocks: blocks.collect(), ..self }
    }

    /// Adds tables.
    pub fn tables(mut self, tables: impl IntoIterator<Item = Table>) -> Self {
        self.blocks.extend(tables.into_iter().map(Block::Table));
        self
    }
}
