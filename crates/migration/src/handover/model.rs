//! All that can happen to a hand-over: each order of what both sides do, of what arrives and what
//! is lost, of cuts, new connections, and machines that are killed.

use super::{Action, Ended, Known, Message, SessionStatus, SourceState, TargetState};
use std::collections::{HashMap, HashSet, VecDeque};

/// Mistakes that the model must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    None,
    /// The target runs the guest as soon as it is complete.
    RunsWhenReady,
    /// The source says Go and forgets to stand still for good.
    GivesAndKeeps,
    /// After a cut the source takes the guest back although it has said Go.
    TakesBack,
    /// The target answers on a new connection before it has read the former one.
    AnswersEarly,
    /// The target forgets that it ran the guest, as when it has left again.
    Forgets,
    /// Where nobody listens the target is believed to be gone.
    BelievesRefusal,
    /// A machine says that a guest is not there of which it has never heard.
    BelievesStranger,
    /// A tool says that the guest is not there because it has lost its hypervisor.
    BelievesLost,
    /// The operator, who errs, is believed though the target's tool answers.
    OverrulesTarget,
    /// The source destroys the guest when it says Go.
    DestroysEarly,
    /// Nobody asks after a cut.
    NeverAsks,
}

/// Both machines and what is between them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct World {
    source: Option<SourceState>,
    /// Whether its guest runs, and whether it still has it.
    source_runs: bool,
    source_has: bool,
    target: Option<TargetState>,
    target_runs: bool,
    /// What the target's tool knows, and what its hypervisor has said and it has not heard yet.
    known: Known,
    unheard: bool,
    /// Under way in the present connection, first one first; `None` without connection.
    to_target: Vec<Message>,
    to_source: Vec<Message>,
    /// What was under way when the connection was cut, and the target has yet to read.
    left_over: Vec<Message>,
    /// Each side learns at some time that the connection is cut.
    connected: bool,
    source_knows: bool,
    target_knows: bool,
    /// The source has asked, on the present connection.
    asks: bool,
    cuts: u8,
}

/// Adds something that may happen: what it is, and what it does.
type Add<'a> = dyn FnMut(String, &dyn Fn(&mut World)) + 'a;

impl World {
    fn new() -> Self {
        Self {
            source: Some(SourceState::Here),
            source_runs: true,
            source_has: true,
            target: Some(TargetState::Arriving),
            connected: true,
            source_knows: true,
            target_knows: true,
            ..Self::default()
        }
    }

    fn say_to_target(&mut self, what: Message) {
        if self.connected && !self.asks {
            self.to_target.push(what);
        }
    }

    fn say_to_source(&mut self, what: Message) {
        if self.connected {
            self.to_source.push(what);
        }
    }

    fn source_acts(&mut self, act: Action, mistake: Mistake) {
        match act {
            Action::Wait => {}
            Action::Run(_) => self.source_runs = self.source_has,
            Action::Say(what) => {
                self.say_to_target(what);
                self.source_runs |= mistake == Mistake::GivesAndKeeps;
                self.source_has &= mistake != Mistake::DestroysEarly;
            }
            Action::Destroy => self.source_has = false,
        }
    }

    fn target_acts(&mut self, act: Action) {
        match act {
            Action::Wait | Action::Destroy => {}
            Action::Run(then) => {
                self.target_runs = true;
                self.unheard = then == Some(Message::Runs);
            }
            Action::Say(what) => self.say_to_source(what),
        }
    }

    fn source_hears(&mut self, what: Message, mistake: Mistake) {
        let Some(mut source) = self.source else { return };
        let act = match (source, what) {
            (SourceState::Given, Message::Cut) if mistake == Mistake::TakesBack => {
                source = SourceState::Here;
                Action::Run(None)
            }
            _ => source.hear(what),
        };
        self.source = Some(source);
        self.source_acts(act, mistake);
    }

    fn target_hears(&mut self, what: Message) {
        let Some(mut target) = self.target else { return };
        let act = target.hear(what);
        self.target = Some(target);
        self.target_acts(act);
    }

    fn cut(&mut self, lost: usize) {
        // Some of what is under way to the target still arrives.
        let kept = self.to_target.len() - lost;
        self.left_over = self.to_target.drain(..).take(kept).collect();
        self.to_source.clear();
        (self.connected, self.asks) = (false, false);
        (self.source_knows, self.target_knows) = (self.source.is_none(), self.target.is_none());
        self.cuts += 1;
    }

    /// What its hypervisor has said reaches the target's tool, and then the source.
    fn tool_hears(&mut self) {
        if std::mem::take(&mut self.unheard) {
            self.known.runs();
            if !self.asks {
                self.say_to_source(Message::Runs);
            }
        }
    }

    /// The request by which the guest arrives ends.
    fn request_ends(&mut self) {
        self.tool_hears();
        let ran = self.target == Some(TargetState::Running);
        self.known.end(if ran { Ended::Well } else { Ended::Refused });
    }

    /// What may happen next.
    fn next(&self, mistake: Mistake) -> Vec<(String, Self)> {
        let mut all = Vec::new();
        let mut add = |what: String, act: &dyn Fn(&mut Self)| {
            let mut next = self.clone();
            act(&mut next);
            all.push((what, next));
        };
        if self.source == Some(SourceState::Here) && self.connected && self.cuts == 0 && self.source_runs {
            add("the guest stands still".into(), &|world| {
                world.source = Some({
                    let mut source = SourceState::Here;
                    source.offer();
                    source
                });
                world.source_runs = false;
            });
        }
        if self.source == Some(SourceState::Offered)
            && self.target == Some(TargetState::Arriving)
            && self.connected
        {
            add("the target has all".into(), &|world| {
                let mut target = TargetState::Arriving;
                let act = target.complete();
                world.target = Some(target);
                world.target_acts(act);
                world.target_runs |= mistake == Mistake::RunsWhenReady;
            });
        }
        if self.connected {
            for lost in 0..=self.to_target.len() {
                if self.cuts < 3 {
                    add(format!("cut, {lost} lost"), &|world| world.cut(lost));
                }
            }
            if let Some(&first) = self.to_target.first() {
                add(format!("target hears {first:?}"), &|world| {
                    world.to_target.remove(0);
                    world.target_hears(first);
                });
            }
            if let Some(&first) = self.to_source.first() {
                add(format!("source hears {first:?}"), &|world| {
                    world.to_source.remove(0);
                    world.source_hears(first, mistake);
                });
            }
        }
        self.after_a_cut(mistake, &mut add);
        self.in_the_tool(&mut add);
        for lost in 0..=self.to_target.len() {
            if self.source.is_some() && self.target.is_some() && self.cuts < 3 {
                add("the source is killed".into(), &|world| {
                    world.cut(lost);
                    (world.source, world.source_runs, world.source_has) = (None, false, false);
                    world.source_knows = true;
                });
                add("the target is killed".into(), &|world| {
                    world.cut(lost);
                    (world.target, world.target_runs) = (None, false);
                    (world.left_over, world.target_knows, world.unheard) = (Vec::new(), true, false);
                });
            }
        }
        all
    }

    /// What happens between the target's hypervisor and its tool.
    fn in_the_tool(&self, add: &mut Add<'_>) {
        if self.unheard {
            add("the target's tool hears Runs".into(), &Self::tool_hears);
        }
        if self.target.is_some() && !self.asks && self.cuts < 3 && self.known == Known::Pending {
            // What its hypervisor had said may be lost with it.
            add("the target's tool loses its hypervisor".into(), &|world| {
                world.cut(0);
                (world.target_knows, world.unheard) = (true, false);
                std::mem::take(&mut world.left_over).into_iter().for_each(|what| world.target_hears(what));
                world.target_hears(Message::Cut);
                world.known.end(Ended::Broken);
            });
        }
    }

    fn after_a_cut(&self, mistake: Mistake, add: &mut Add<'_>) {
        if !self.source_knows {
            add("the source learns of the cut".into(), &|world| {
                world.source_knows = true;
                world.source_hears(Message::Cut, mistake);
            });
        }
        if let (Some(&first), false) = (self.left_over.first(), self.target_knows) {
            add(format!("target still hears {first:?}"), &|world| {
                world.left_over.remove(0);
                world.target_hears(first);
            });
        }
        if !self.target_knows && self.left_over.is_empty() {
            add("the target learns of the cut".into(), &|world| {
                world.target_knows = true;
                world.target_hears(Message::Cut);
                world.request_ends();
            });
        }
        self.when_asked(mistake, add);
    }

    /// The source asks what came of its session.
    fn when_asked(&self, mistake: Mistake, add: &mut Add<'_>) {
        let waits =
            self.source == Some(SourceState::Given) && self.source_knows && mistake != Mistake::NeverAsks;
        if !waits {
            return;
        }
        let mut may_be = |who: &str, told: SessionStatus, is_gone: bool| {
            let is_believed = match (told, mistake) {
                (SessionStatus::Nobody, Mistake::BelievesRefusal)
                | (SessionStatus::Stranger, Mistake::BelievesStranger)
                | (SessionStatus::Lost, Mistake::BelievesLost)
                | (SessionStatus::Pending, Mistake::AnswersEarly)
                | (SessionStatus::Runs, Mistake::Forgets) => Some(Message::Absent),
                (SessionStatus::Lost | SessionStatus::Pending, Mistake::OverrulesTarget) if is_gone => {
                    Some(Message::Absent)
                }
                _ => told.decides(is_gone),
            };
            let Some(heard) = is_believed else { return };
            let asks = |world: &mut Self| {
                (world.connected, world.asks) = (true, true);
                world.say_to_source(heard);
            };
            match told {
                SessionStatus::Nobody | SessionStatus::Stranger => {
                    add(format!("{who}: {told:?}"), &|world| world.source_hears(heard, mistake));
                }
                _ if !self.connected => add(format!("{who}: {told:?}"), &asks),
                _ => {}
            }
        };
        may_be("a connection is refused", SessionStatus::Nobody, false);
        may_be("another machine answers", SessionStatus::of(None), false);
        if self.target.is_some() {
            may_be("the target answers", SessionStatus::of(Some(self.known)), false);
            may_be("the operator errs, and the target answers", SessionStatus::of(Some(self.known)), true);
        } else {
            may_be("the operator says that the target is gone", SessionStatus::Nobody, true);
        }
    }

    fn fault(&self) -> Option<&'static str> {
        (self.source_runs && self.target_runs).then_some("both run")
    }

    /// Nothing more will happen by itself: then exactly one runs, unless its machine is gone.
    fn end_fault(&self) -> Option<&'static str> {
        match (self.source, self.target) {
            (Some(_), _) if self.source_runs || self.target_runs => None,
            (Some(SourceState::Away), None) => None, // It ran there, and its machine was killed.
            // In doubt: the target was told to drop it, and cannot say whether it has.
            (Some(SourceState::Given), Some(TargetState::Dropped)) if self.known == Known::Lost => None,
            (None, _) => None,
            _ => Some("nobody runs"),
        }
    }
}

/// Looks at everything that can happen; returns the number of states, or how a fault comes about.
fn explore(mistake: Mistake) -> Result<usize, String> {
    let mut from: HashMap<World, (World, String)> = HashMap::new();
    let mut seen = HashSet::from([World::new()]);
    let mut queue = VecDeque::from([World::new()]);
    let trace = |end: &World, from: &HashMap<World, (World, String)>| {
        let mut steps = Vec::new();
        let mut at = end.clone();
        while let Some((before, step)) = from.get(&at) {
            steps.push(step.clone());
            at = before.clone();
        }
        steps.reverse();
        steps.join("; ")
    };
    while let Some(world) = queue.pop_front() {
        if let Some(fault) = world.fault() {
            return Err(format!("{fault}: {}", trace(&world, &from)));
        }
        let next = world.next(mistake);
        // A cut or a kill is nothing that must happen.
        let must = |what: &str| !["cut, ", "killed", "stands", "loses"].iter().any(|it| what.contains(it));
        if !next.iter().any(|(what, _)| must(what))
            && let Some(fault) = world.end_fault()
        {
            return Err(format!("{fault}: {}", trace(&world, &from)));
        }
        for (step, next) in next {
            if seen.insert(next.clone()) {
                from.insert(next.clone(), (world.clone(), step));
                queue.push_back(next);
            }
        }
    }
    Ok(seen.len())
}

#[test]
fn m2_exactly_one_runs_whatever_is_lost_and_whoever_is_killed() {
    let states = explore(Mistake::None).unwrap_or_else(|how| panic!("{how}"));
    assert!(states > 100, "only {states} states were looked at");
}

#[test]
fn m2_each_mistake_is_found() {
    for (mistake, fault) in [
        (Mistake::RunsWhenReady, "both run"),
        (Mistake::GivesAndKeeps, "both run"),
        (Mistake::TakesBack, "both run"),
        (Mistake::AnswersEarly, "both run"),
        (Mistake::Forgets, "both run"),
        (Mistake::BelievesRefusal, "both run"),
        (Mistake::BelievesStranger, "both run"),
        (Mistake::BelievesLost, "both run"),
        (Mistake::OverrulesTarget, "both run"),
        (Mistake::NeverAsks, "nobody runs"),
        (Mistake::DestroysEarly, "nobody"),
    ] {
        let how = explore(mistake).expect_err(&format!("{mistake:?} is not found"));
        assert!(how.starts_with(fault), "{mistake:?}: {how}");
    }
}
