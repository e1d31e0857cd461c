//! The partial allocation mechanism (Cole, Gkatzelis and Goel, EC 2013; Themis, NSDI 2020): a division of equal goods
//! that nobody gains from lying about.

/// What numbers of goods are worth to a bidder.
#[derive(Clone, Debug)]
pub(crate) struct Bid {
    /// Fewest that it can do with.
    pub(crate) fewest: u32,
    /// Logarithms of the valuations of `fewest` and each number above.
    pub(crate) values: Vec<f64>,
}

impl Bid {
    /// Most that are of use.
    pub(crate) fn most(&self) -> u32 {
        (self.fewest + self.values.len() as u32).saturating_sub(1)
    }
}

/// What a bidder gets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Award {
    /// Goods in the division with the highest product of valuations.
    pub(crate) won: u32,
    /// The share of them that is left after the hidden payment: how well off the others are, all together, against how
    /// well off they would be without this bidder.
    pub(crate) share: f64,
}

impl Award {
    /// What is left of the goods, rounded, and not below the fewest that it can do with.
    pub(crate) fn kept(&self, bid: &Bid) -> u32 {
        ((f64::from(self.won) * self.share).round() as u32).clamp(bid.fewest.min(self.won), self.won)
    }
}

/// Divides `goods` so that the product of all valuations is highest. Everybody gets what it cannot do without: the fewest
/// of all must not be more than there are.
pub(crate) fn partial_allocation(bids: &[Bid], goods: u32) -> Vec<Award> {
    let goods = goods as usize;
    let mut before = vec![vec![0.0; goods + 1]];
    for bid in bids {
        before.push(join(&before[before.len() - 1], bid));
    }
    let mut after = vec![vec![0.0; goods + 1]];
    for bid in bids.iter().rev() {
        after.push(join(&after[after.len() - 1], bid));
    }
    let best = before[bids.len()][goods];
    let mut left = goods;
    let mut awards = Vec::with_capacity(bids.len());
    for (idx, bid) in bids.iter().enumerate().rev() {
        let others = &after[bids.len() - 1 - idx];
        let without = (0..=goods).map(|given| before[idx][given] + others[goods - given]).fold(f64::MIN, f64::max);
        let (won, value) = choice(&before[idx], bid, left).unwrap_or((0, f64::NEG_INFINITY));
        left -= won as usize;
        awards.push(Award { won, share: (best - value - without).exp().min(1.0) });
    }
    awards.reverse();
    awards
}

/// The best of a division at every number of goods, with one bidder more.
fn join(best: &[f64], bid: &Bid) -> Vec<f64> {
    let at = |goods: usize| choice(best, bid, goods).map(|(won, value)| best[goods - won as usize] + value);
    (0..best.len()).map(|goods| at(goods).unwrap_or(f64::NEG_INFINITY)).collect()
}

/// What a bidder gets of so many goods, and its value, when those before it do as well as `best` says; of equals the
/// fewest. None where there is not enough.
fn choice(best: &[f64], bid: &Bid, goods: usize) -> Option<(u32, f64)> {
    let (mut chosen, mut total) = (None, f64::NEG_INFINITY);
    for (won, &value) in (bid.fewest..).zip(&bid.values).take_while(|(won, _)| *won as usize <= goods) {
        if best[goods - won as usize] + value > total {
            total = best[goods - won as usize] + value;
            chosen = Some((won, value));
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Worth as much as there is of it, to a power.
    fn bid(most: u32, power: f64) -> Bid {
        Bid { fewest: 1, values: (1..=most).map(|goods| f64::from(goods).ln() * power).collect() }
    }

    #[test]
    fn the_product_of_valuations_is_highest() {
        let bids = [bid(12, 1.0), bid(12, 1.0), bid(12, 0.5), bid(1, 1.0)];
        let won: Vec<u32> = partial_allocation(&bids, 11).iter().map(|award| award.won).collect();
        assert_eq!(won, [4, 4, 2, 1]);
    }

    #[test]
    fn a_winner_pays_for_what_it_takes_from_others() {
        let alone = partial_allocation(&[bid(8, 1.0)], 8);
        assert_eq!(alone, [Award { won: 8, share: 1.0 }]);
        let shared = partial_allocation(&[bid(8, 1.0), bid(8, 1.0)], 8);
        assert!(shared[0].won == 4 && (shared[0].share - 0.5).abs() < 1e-9, "the other would have had eight");
        assert_eq!(shared[0].kept(&bid(8, 1.0)), 2);
    }

    #[test]
    fn who_exaggerates_wins_more_and_keeps_no_more() {
        let truth = bid(16, 1.0);
        let honest = partial_allocation(&[truth.clone(), bid(16, 1.0)], 16)[0];
        for lie in [1.5, 2.0, 4.0, 0.5] {
            let liar = partial_allocation(&[bid(16, lie), bid(16, 1.0)], 16)[0];
            let worth = |award: Award| f64::from(award.won) * award.share;
            assert!(
                (liar.won > honest.won) == (lie > 1.0) && worth(liar) <= worth(honest) + 1e-9,
                "{liar:?} {honest:?}"
            );
        }
    }

    #[test]
    fn everybody_gets_what_it_cannot_do_without() {
        let gang = Bid { fewest: 3, values: vec![0.0] };
        let bids = [gang.clone(), bid(9, 1.0), gang.clone()];
        let awards = partial_allocation(&bids, 7);
        assert_eq!(awards.iter().map(|award| award.won).collect::<Vec<_>>(), [3, 1, 3]);
        assert_eq!(awards[0].kept(&gang), 3, "a gang cannot be cut");
        assert!(partial_allocation(&[], 4).is_empty());
    }
}
