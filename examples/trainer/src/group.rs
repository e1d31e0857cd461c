use std::io::{self, ErrorKind};

use pollux_model::Shape;
use serde::{Deserialize, Serialize};

use crate::state::{floats_from_bytes, floats_to_bytes};
use crate::step::{Contribution, StepDecision};
use crate::wire::Line;

/// One process of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Member {
    /// Its number for life; its rank where no scheduler gave one.
    pub(crate) replica: u64,
    pub(crate) local_rank: u32,
}

/// The processes that train together, as a star: everybody has a line to rank 0, which adds up and passes on.
#[derive(Debug)]
pub(crate) struct Group {
    /// By rank.
    members: Vec<Member>,
    lines: Lines,
}

#[derive(Debug)]
enum Lines {
    /// Rank 0: the lines to ranks 1, 2, ...
    Leader(Vec<Line>),
    Follower {
        rank: u32,
        leader: Line,
    },
}

impl Group {
    /// The group as its rank 0 sees it; `lines` are those of the other members, in order.
    pub(crate) fn lead(members: Vec<Member>, lines: Vec<Line>) -> Self {
        assert_eq!(members.len(), lines.len() + 1, "a line to everybody else");
        Self { members, lines: Lines::Leader(lines) }
    }

    /// The group as another rank sees it; `None` if `me` is not in it.
    pub(crate) fn follow(members: Vec<Member>, me: u64, leader: Line) -> Option<Self> {
        let rank = members.iter().position(|member| member.replica == me)? as u32;
        Some(Self { members, lines: Lines::Follower { rank, leader } })
    }

    pub(crate) fn members(&self) -> &[Member] {
        &self.members
    }

    pub(crate) fn world_size(&self) -> u32 {
        self.members.len() as u32
    }

    pub(crate) const fn rank(&self) -> u32 {
        match self.lines {
            Lines::Leader(_) => 0,
            Lines::Follower { rank, .. } => rank,
        }
    }

    pub(crate) const fn is_leader(&self) -> bool {
        matches!(self.lines, Lines::Leader(_))
    }

    /// A node is wherever there is a first process.
    pub(crate) fn shape(&self) -> Shape {
        let nodes = self.members.iter().filter(|member| member.local_rank == 0).count().max(1);
        Shape::new(nodes as u32, self.world_size()).expect("at most a node a member")
    }

    /// The lines to these members, in their order, closing all others. Rank 0 has a line to every member but itself.
    pub(crate) fn into_lines(self, kept: &[Member]) -> Vec<Line> {
        let Lines::Leader(lines) = self.lines else { return Vec::new() };
        let mut known: Vec<_> = self.members.into_iter().skip(1).zip(lines).collect();
        let found = kept.iter().filter_map(|kept| {
            let idx = known.iter().position(|(member, _)| member.replica == kept.replica)?;
            Some(known.swap_remove(idx).1)
        });
        found.collect()
    }

    /// The line to rank 0, for everybody else.
    pub(crate) fn into_leader_line(self) -> Option<Line> {
        match self.lines {
            Lines::Leader(_) => None,
            Lines::Follower { leader, .. } => Some(leader),
        }
    }

    /// The first half of an all-reduce, for rank 0: adds what the others send to `gradient`, in order of rank, so that
    /// the same numbers always give the same sum.
    pub(crate) fn gather(&mut self, own: Contribution, gradient: &mut [f32]) -> io::Result<Vec<Contribution>> {
        let Lines::Leader(lines) = &mut self.lines else { return Err(misled()) };
        let mut contributions = vec![own];
        for line in lines {
            let (contribution, body) = line.receive()?;
            let part = floats(&body, gradient.len())?;
            gradient.iter_mut().zip(part).for_each(|(sum, value)| *sum += value);
            contributions.push(contribution);
        }
        Ok(contributions)
    }

    /// Sends the same to everybody, for rank 0; those who are gone do not keep it from the others.
    pub(crate) fn broadcast(&mut self, head: &impl Serialize, body: &[u8]) -> io::Result<()> {
        self.send(|_| true, head, body)
    }

    /// Sends the same to some.
    pub(crate) fn send(&mut self, whom: impl Fn(u32) -> bool, head: &impl Serialize, body: &[u8]) -> io::Result<()> {
        let Lines::Leader(lines) = &mut self.lines else { return Err(misled()) };
        let mut outcome = Ok(());
        for (line, rank) in lines.iter_mut().zip(1..) {
            if whom(rank) {
                outcome = outcome.and(line.send(head, body));
            }
        }
        outcome
    }

    /// Both halves of an all-reduce, for the other ranks: sends, and hears the mean and what to do next.
    pub(crate) fn exchange(&mut self, own: &Contribution, gradient: &mut [f32]) -> io::Result<StepDecision> {
        let Lines::Follower { leader, .. } = &mut self.lines else { return Err(misled()) };
        leader.send(own, &floats_to_bytes(gradient))?;
        let (decision, body) = leader.receive()?;
        gradient.copy_from_slice(&floats(&body, gradient.len())?);
        Ok(decision)
    }
}

fn floats(bytes: &[u8], length: usize) -> io::Result<Vec<f32>> {
    let floats = floats_from_bytes(bytes).filter(|floats| floats.len() == length);
    floats.ok_or_else(|| io::Error::new(ErrorKind::InvalidData, format!("{} bytes of gradient", bytes.len())))
}

/// Only rank 0 gathers and tells, only others exchange.
fn misled() -> io::Error {
    io::Error::other("asked to play the part of another rank")
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::thread;

    use pollux_agent::Tuning;

    use super::*;
    use crate::step::{Instruction, Next};

    const LENGTH: usize = 5000;

    fn value(rank: u32, idx: usize) -> f32 {
        (rank + 1) as f32 + idx as f32 / 7.0
    }

    fn contribution(rank: u32) -> Contribution {
        let rank = u64::from(rank);
        Contribution {
            heard: rank,
            instruction: Instruction::Train,
            samples: rank,
            checksum: rank,
            loss: 0.5,
            micro_sqr: 0.25,
        }
    }

    fn lines() -> (Line, Line) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let there = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (Line::new(listener.accept().unwrap().0).unwrap(), Line::new(there).unwrap())
    }

    fn members(count: u32) -> Vec<Member> {
        (0..count).map(|rank| Member { replica: u64::from(rank) + 100, local_rank: rank % 2 }).collect()
    }

    #[test]
    fn everybody_ends_up_with_the_sum_that_rank_0_has() {
        for count in [1, 2, 5] {
            let (near, far): (Vec<_>, Vec<_>) = (1..count).map(|_| lines()).unzip();
            let followers = far.into_iter().zip(1..).map(|(line, rank)| {
                let mut group = Group::follow(members(count), u64::from(rank) + 100, line).unwrap();
                thread::spawn(move || {
                    assert_eq!((group.rank(), group.is_leader()), (rank, false));
                    let mut gradient: Vec<f32> = (0..LENGTH).map(|idx| value(rank, idx)).collect();
                    let decision = group.exchange(&contribution(rank), &mut gradient).unwrap();
                    assert_eq!(decision.next, Next::Finish);
                    gradient
                })
            });
            let followers: Vec<_> = followers.collect();

            let mut group = Group::lead(members(count), near);
            let mut gradient: Vec<f32> = (0..LENGTH).map(|idx| value(0, idx)).collect();
            let contributions = group.gather(contribution(0), &mut gradient).unwrap();
            assert!(contributions.iter().map(|part| part.heard).eq(0..u64::from(count)));
            let tuning = Tuning { local_batch: 1, accumulation_steps: 0 };
            let decision = StepDecision { learning_rate: Some(0.1), tuning, next: Next::Finish, brain: None };
            group.broadcast(&decision, &floats_to_bytes(&gradient)).unwrap();

            for (idx, &sum) in gradient.iter().enumerate() {
                let expected: f32 = (0..count).map(|rank| value(rank, idx)).sum();
                assert!((sum - expected).abs() <= 1e-5 * expected, "{idx}: {sum} {expected}");
            }
            for follower in followers {
                assert_eq!(follower.join().unwrap(), gradient);
            }
        }
    }

    #[test]
    fn a_lost_rank_is_an_error_for_rank_0_and_a_lost_rank_0_one_for_everybody() {
        let (near, far) = lines();
        drop(far);
        let mut group = Group::lead(members(2), vec![near]);
        assert!(group.gather(contribution(0), &mut [0.0]).is_err());

        let (near, far) = lines();
        drop(near);
        let mut group = Group::follow(members(2), 101, far).unwrap();
        assert!(group.exchange(&contribution(1), &mut [0.0]).is_err());
    }

    #[test]
    fn nodes_are_counted_by_their_first_processes() {
        let member = |local_rank| Member { replica: 0, local_rank };
        let placement = |local: &[u32]| {
            let members = local.iter().map(|&local_rank| member(local_rank)).collect();
            let lines = local[1..].iter().map(|_| lines().0).collect();
            Group::lead(members, lines).shape()
        };
        assert_eq!(placement(&[0]), Shape::new(1, 1).unwrap());
        assert_eq!(placement(&[0, 1, 2]), Shape::new(1, 3).unwrap());
        assert_eq!(placement(&[0, 1, 0]), Shape::new(2, 3).unwrap());
    }
}
