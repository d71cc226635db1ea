//! Who should take part: a pure function of who is there, what is asked for, and the time.

use paceline_record::{Member, Nanos};

/// What decides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Policy {
    /// With fewer members than this nothing runs.
    pub min: u32,
    /// Times that each seat is filled again after its member was lost.
    pub restarts: u32,
    /// How long to wait with fewer than `min`.
    pub patience: Nanos,
    /// How long a seat stays empty after a loss; twice as long after each in a row that had not done a step.
    pub pause: Nanos,
    /// How many may be on their way at once; one at first where the first decides how all compute.
    pub starting: u32,
}

/// The longest pause before a seat is filled again.
const LONGEST_PAUSE: Nanos = Nanos(30_000_000_000);

/// Who sits in a seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Occupant {
    /// Nobody.
    Nobody,
    /// Somebody who was started and is not ready.
    Starting(Member),
    /// Somebody who can take part.
    Ready(Member),
    /// Somebody who will do no more tasks, and has not ended yet.
    Leaving(Member),
}

/// A place for a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seat {
    pub occupant: Occupant,
    /// Members that were lost in it, and of the last of them those in a row that had not done a step.
    pub losses: u32,
    pub in_vain: u32,
    /// When it may be filled again.
    pub free_from: Nanos,
    /// Whether its member left by its own wish: one fewer is asked for, and it is filled again only when more are.
    pub given_up: bool,
}

impl Seat {
    const EMPTY: Self =
        Self { occupant: Occupant::Nobody, losses: 0, in_vain: 0, free_from: Nanos(0), given_up: false };

    fn member(self) -> Option<Member> {
        match self.occupant {
            Occupant::Nobody => None,
            Occupant::Starting(member) | Occupant::Ready(member) | Occupant::Leaving(member) => Some(member),
        }
    }
}

/// All seats, and how many members are asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Crew {
    pub seats: Vec<Seat>,
    pub asked: u32,
    /// Seats of the present roster, by rank.
    pub roster: Vec<u32>,
    /// Since when there have been fewer than `min`.
    pub short_since: Option<Nanos>,
}

/// How somebody's time ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Killed, crashed, expelled: a loss.
    Lost {
        /// Whether it had done a step.
        worked: bool,
    },
    /// It left by its own wish.
    Left,
    /// Fewer were asked for.
    Dismissed,
}

/// What to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Decision {
    /// Seats to be filled.
    pub start: Vec<u32>,
    /// The next roster, and why there is one.
    pub roster: Option<(Vec<u32>, Reason)>,
    /// Members that were started in vain, as fewer are asked for.
    pub dismiss: Vec<u32>,
    /// Nothing can go on.
    pub give_up: Option<Hopeless>,
}

/// Why there is a new roster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The first members are there.
    First,
    /// Members were lost or left, and others may have come.
    Changed { gone: Vec<u32>, come: Vec<u32> },
}

/// Why nothing can go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hopeless {
    /// There are too few, and nobody will come.
    NobodyComes { there: u32 },
    /// There have been too few for too long.
    TooLong { there: u32 },
}

impl Crew {
    /// Nobody yet.
    pub fn new(seats: u32, asked: u32) -> Self {
        Self { seats: vec![Seat::EMPTY; seats as usize], asked, roster: Vec::new(), short_since: None }
    }

    /// Members that are there or on their way, and stay.
    pub fn staying(&self) -> u32 {
        let stays = |seat: &&Seat| matches!(seat.occupant, Occupant::Starting(_) | Occupant::Ready(_));
        self.seats.iter().filter(stays).count() as u32
    }

    /// Asks for another number. Seats that were given up, or lost too many, are worth another try where there are to be more.
    pub fn ask(&mut self, count: u32) {
        if count > self.staying() {
            for seat in &mut self.seats {
                *seat = Seat { occupant: seat.occupant, ..Seat::EMPTY };
            }
        }
        self.asked = count.min(self.seats.len() as u32);
    }

    /// Notes that somebody was started.
    pub fn started(&mut self, seat: u32, member: Member) {
        self.seats[seat as usize].occupant = Occupant::Starting(member);
    }

    /// Notes that somebody is ready.
    pub fn ready(&mut self, seat: u32) {
        let seat = &mut self.seats[seat as usize];
        if let Occupant::Starting(member) = seat.occupant {
            seat.occupant = Occupant::Ready(member);
        }
    }

    /// Notes that somebody will do no more tasks.
    pub fn leaving(&mut self, seat: u32) {
        let seat = &mut self.seats[seat as usize];
        if let Some(member) = seat.member() {
            seat.occupant = Occupant::Leaving(member);
        }
    }

    /// Notes that nothing is left of whoever sat in a seat.
    pub fn ended(&mut self, seat: u32, end: End, policy: &Policy, now: Nanos) {
        let seat = &mut self.seats[seat as usize];
        seat.occupant = Occupant::Nobody;
        match end {
            End::Lost { worked } => {
                seat.in_vain = if worked { 0 } else { seat.in_vain + 1 };
                let pause = policy.pause.0.saturating_mul(1 << seat.in_vain.min(20)).min(LONGEST_PAUSE.0);
                seat.losses += 1;
                seat.free_from = now + Nanos(pause);
            }
            End::Left => {
                seat.given_up = true;
                self.asked = self.asked.saturating_sub(1).max(1);
            }
            End::Dismissed => {}
        }
    }

    /// Whether a seat may be filled, now or later.
    fn is_usable(seat: &Seat, policy: &Policy) -> bool {
        !seat.given_up && seat.losses <= policy.restarts
    }

    /// What to do now. It changes nothing but the time since which there are too few.
    pub fn decide(&mut self, policy: &Policy, now: Nanos) -> Decision {
        let mut decision = Decision::default();
        let number = |place: usize| place as u32;
        // Those that are ready stay before those on their way, and lower seats before higher ones.
        let of = |kind: fn(Occupant) -> bool| -> Vec<u32> {
            (0..).zip(&self.seats).filter(|(_, seat)| kind(seat.occupant)).map(|(place, _)| place).collect()
        };
        let ready = of(|occupant| matches!(occupant, Occupant::Ready(_)));
        let starting = of(|occupant| matches!(occupant, Occupant::Starting(_)));
        let wanted: Vec<u32> = ready.iter().copied().take(self.asked as usize).collect();
        let room = (self.asked as usize).saturating_sub(wanted.len());
        decision.dismiss = starting.iter().copied().skip(room).collect();
        let coming = starting.len().min(room);
        let usable = (0..self.seats.len()).filter(|&place| {
            let seat = &self.seats[place];
            seat.occupant == Occupant::Nobody && Self::is_usable(seat, policy)
        });
        let usable: Vec<usize> = usable.take(room - coming).collect();
        let at_once = (policy.starting as usize).saturating_sub(starting.len());
        let due = usable.iter().filter(|&&place| self.seats[place].free_from <= now).take(at_once);
        decision.start = due.copied().map(number).collect();

        let there = wanted.len() as u32;
        let is_short = there < policy.min;
        self.short_since = is_short.then(|| self.short_since.unwrap_or(now));
        // Whoever left may be asked for again.
        let hopeless = coming == 0 && usable.is_empty() && !self.seats.iter().any(|seat| seat.given_up);
        decision.give_up = match self.short_since {
            Some(_) if hopeless => Some(Hopeless::NobodyComes { there }),
            Some(since) if now.since(since) > policy.patience => Some(Hopeless::TooLong { there }),
            _ => None,
        };
        // The first roster waits for all who are on their way, so that the first step has all hands.
        let is_first = self.roster.is_empty() && coming + decision.start.len() > 0;
        if wanted != self.roster && !(is_first && there < self.asked) {
            let missing_from = |from: &[u32], seat: &&u32| !from.contains(*seat);
            let gone = self.roster.iter().filter(|seat| missing_from(&wanted, seat)).copied().collect();
            let come = wanted.iter().filter(|seat| missing_from(&self.roster, seat)).copied().collect();
            let reason = if self.roster.is_empty() { Reason::First } else { Reason::Changed { gone, come } };
            decision.roster = Some((wanted, reason));
        }
        decision
    }
}

#[cfg(test)]
mod tests;
