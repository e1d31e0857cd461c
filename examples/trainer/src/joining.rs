//! How a process finds its group: rank 0 waits for everybody, the others go to it and wait to be welcomed. A group that
//! starts afresh and one that grows look the same to those who come.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use pollux_worker::{Assignment, AssignmentState, Endpoint, Orders, Ranks};

use crate::error::TrainerError;
use crate::group::{Group, Member};
use crate::membership::Membership;
use crate::rendezvous::{Acceptance, Address, Hello, Rendezvous, Welcome};
use crate::wire::Line;

/// How long a group may take to come together. A scheduler gives up earlier.
const JOINING_MAX: Duration = Duration::from_secs(600);
const POLL: Duration = Duration::from_millis(10);

/// A place in a generation.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    generation: u64,
    rank: u32,
    local_rank: u32,
    world_size: u32,
    /// As the launcher says; a scheduler tells it with the assignment.
    given: Endpoint,
}

impl Place {
    pub(crate) fn of_ranks(generation: u64, ranks: Ranks) -> Self {
        Self {
            generation,
            rank: ranks.rank,
            local_rank: ranks.local_rank,
            world_size: ranks.world_size,
            given: Endpoint { address: ranks.master_address, port: ranks.master_port },
        }
    }

    /// `None` if the replica is not in it.
    fn of_assignment(assignment: &Assignment, replica: u64) -> Option<Self> {
        let found = assignment.replicas.iter().find(|assigned| assigned.replica == replica)?;
        Some(Self {
            generation: assignment.generation,
            rank: found.rank,
            local_rank: found.local_rank,
            world_size: assignment.replicas.len() as u32,
            given: Endpoint { address: assignment.master_address.clone(), port: assignment.master_port },
        })
    }
}

impl Membership {
    /// The assignment of a place, once the scheduler has told it.
    fn assignment_of(&self, place: &Place) -> Option<Arc<Assignment>> {
        let newest = self.worker()?.assignment()?;
        (newest.generation == place.generation && newest.state == AssignmentState::Run).then_some(newest)
    }

    /// Where the others of a place find rank 0, once it has told.
    fn endpoint_of(&self, place: &Place) -> Option<Endpoint> {
        match self.worker() {
            None => Some(place.given.clone()),
            Some(_) => self.assignment_of(place)?.endpoint(),
        }
    }

    /// Listens for the others of a place that this process leads.
    fn listen_at(&self, place: &Place) -> Option<Rendezvous> {
        match self.worker() {
            None => Rendezvous::open(place.generation, &place.given.address, place.given.port).ok(),
            Some(_) => self.open(&*self.assignment_of(place)?).ok(),
        }
    }
}

/// How the search for a group ended.
pub(crate) enum Joined {
    /// This process leads a group of which nobody has a state yet.
    Leader(Group),
    /// This process was welcomed and given a state.
    Follower { line: Line, welcome: Welcome, state: Vec<u8> },
    /// This process is not wanted any more.
    Left,
    /// Another generation is current.
    Moved(Place),
}

/// Joins the newest group that this process is told of.
pub(crate) fn join(membership: &mut Membership, mut place: Place) -> Result<Joined, TrainerError> {
    let deadline = Instant::now() + JOINING_MAX;
    loop {
        let joined =
            if place.rank == 0 { lead(membership, &place, deadline) } else { follow(membership, &place, deadline) };
        match joined? {
            Joined::Moved(newer) => place = newer,
            joined @ (Joined::Leader(_) | Joined::Follower { .. } | Joined::Left) => return Ok(joined),
        }
    }
}

fn lead(membership: &mut Membership, place: &Place, deadline: Instant) -> Result<Joined, TrainerError> {
    // What the scheduler says of GPUs and batches counts from the first step on.
    while membership.worker().is_some() && membership.assignment_of(place).is_none() {
        if let Some(interruption) = interruption(membership, place) {
            return Ok(interruption);
        }
        pause(deadline)?;
    }
    let mut members = vec![Member { replica: membership.me(), local_rank: place.local_rank }];
    let mut lines = Vec::new();
    if place.world_size > 1 {
        let mut rendezvous = None;
        let arrived = loop {
            if rendezvous.is_none() {
                rendezvous = membership.listen_at(place);
            }
            if let Some(rendezvous) = &mut rendezvous
                && rendezvous.complete(1..place.world_size)
                && let Some(arrived) = rendezvous.take(1..place.world_size)
            {
                break arrived;
            }
            if let Some(interruption) = interruption(membership, place) {
                return Ok(interruption);
            }
            pause(deadline)?;
        };
        members.extend(arrived.0);
        lines = arrived.1;
    }
    membership.settle(place.generation);
    Ok(Joined::Leader(Group::lead(members, lines)))
}

fn follow(membership: &Membership, place: &Place, deadline: Instant) -> Result<Joined, TrainerError> {
    let member = Member { replica: membership.me(), local_rank: place.local_rank };
    let hello = Hello { generation: place.generation, rank: place.rank, member };
    let mut waiting: Option<Line> = None;
    loop {
        if waiting.is_none()
            && let Some(Endpoint { address, port }) = membership.endpoint_of(place)
        {
            waiting = introduce(&address, port, &hello).ok();
        }
        // Who is sent away comes back: rank 0 may have been too busy, or has moved.
        waiting = match waiting.map(|line| (line.has_message(), line)) {
            Some((Ok(true), mut line)) => {
                if let Ok((welcome, state)) = await_welcome(&mut line) {
                    return Ok(Joined::Follower { line, welcome, state });
                }
                None
            }
            Some((Ok(false), line)) => Some(line),
            Some((Err(_), _)) | None => None,
        };
        if let Some(interruption) = interruption(membership, place) {
            return Ok(interruption);
        }
        pause(deadline)?;
    }
}

/// What keeps a process from waiting any longer for the group of `place`.
fn interruption(membership: &Membership, place: &Place) -> Option<Joined> {
    // There is nothing to save yet, so it does not matter what for.
    if membership.is_terminated() {
        return Some(Joined::Left);
    }
    let worker = membership.worker()?;
    match worker.orders() {
        Orders::Stop | Orders::Leave => return Some(Joined::Left),
        Orders::Train => {}
    }
    let newest = worker.assignment()?;
    if newest.state == AssignmentState::Stop || newest.generation <= place.generation {
        return None;
    }
    Some(Place::of_assignment(&newest, membership.me()).map_or(Joined::Left, Joined::Moved))
}

/// Connects to a rank 0 and says who comes.
pub(crate) fn introduce(host: &str, port: u16, hello: &Hello) -> io::Result<Line> {
    let mut line = Line::connect(host, port)?;
    line.send(hello, &[])?;
    Ok(line)
}

/// Accepts an invitation and waits for what follows: the welcome, or the end of the line where rank 0 has moved on.
pub(crate) fn await_welcome(line: &mut Line) -> io::Result<(Welcome, Vec<u8>)> {
    loop {
        match line.receive()? {
            (Address::Invitation, _) => line.send(&Acceptance, &[])?,
            (Address::Welcome(welcome), state) => return Ok((welcome, state)),
        }
    }
}

/// A moment before the next look; an error once that makes no sense any more.
pub(crate) fn pause(deadline: Instant) -> Result<(), TrainerError> {
    if Instant::now() >= deadline {
        return Err(TrainerError::Lost(ErrorKind::TimedOut.into()));
    }
    thread::sleep(POLL);
    Ok(())
}
