//! The order of a function's blocks, and its loops.
//!
//! Called first: other analyses, and the choice of the path that runs, go by this order. Must not know registers.

use super::set::BitSet;
use crate::ir::{Block, BlockId, Func};
use crate::limits::{LOOP_BITS, LOOP_STEPS};

/// What of a function is beyond a limit, and the limit.
pub(crate) type Beyond = (&'static str, u64);

/// Puts the blocks into an order in which a join comes after what it joins and a loop's blocks stand
/// together, and drops those that are never reached. Lanes that wait for others at the lowest block then
/// meet them as soon as possible. Fails for a function with too many blocks and loops.
pub(super) fn order(func: &mut Func) -> Result<(), Beyond> {
    let successors: Vec<Vec<BlockId>> = func
        .blocks
        .iter()
        .map(|block| block.end.successors())
        .collect();
    let mut order = reverse_postorder(&successors);
    let loops = natural_loops(&successors, &order)?;
    for (header, body) in &loops {
        // Blocks that are not of the loop but stand between its blocks move behind it.
        let Some(first) = order.iter().position(|block| block == header) else {
            continue;
        };
        let last = order
            .iter()
            .rposition(|&block| body.has(block))
            .unwrap_or(first);
        let (inside, outside): (Vec<_>, Vec<_>) = order[first..=last]
            .iter()
            .partition(|&&block| body.has(block));
        order.splice(first..=last, inside.into_iter().chain(outside));
    }
    let mut place = vec![u32::MAX; successors.len()];
    for (index, &block) in order.iter().enumerate() {
        place[block as usize] = index as u32;
    }
    let mut old: Vec<Option<Block>> = std::mem::take(&mut func.blocks)
        .into_iter()
        .map(Some)
        .collect();
    func.blocks = order
        .iter()
        .filter_map(|&block| old[block as usize].take())
        .collect();
    for block in &mut func.blocks {
        block.end.map(|target| place[target as usize]);
    }
    Ok(())
}

fn reverse_postorder(successors: &[Vec<BlockId>]) -> Vec<BlockId> {
    let mut seen = BitSet::new(successors.len());
    let mut post = Vec::new();
    seen.insert(0);
    // Successors are visited from the last in the source to the first, so that the order is close to it.
    let sorted = |block: BlockId| {
        let mut next = successors[block as usize].clone();
        next.sort_unstable();
        next
    };
    let mut stack = vec![(0, sorted(0))];
    while let Some((block, next)) = stack.last_mut() {
        if let Some(successor) = next.pop() {
            if seen.insert(successor) {
                stack.push((successor, sorted(successor)));
            }
        } else {
            post.push(*block);
            stack.pop();
        }
    }
    post.reverse();
    post
}

/// Loops by their headers: a loop of a header is all of its back-edges' loops together.
fn natural_loops(
    successors: &[Vec<BlockId>],
    order: &[BlockId],
) -> Result<Vec<(BlockId, BitSet)>, Beyond> {
    let count = successors.len();
    let mut place = vec![usize::MAX; count];
    for (index, &block) in order.iter().enumerate() {
        place[block as usize] = index;
    }
    let mut predecessors = vec![Vec::new(); count];
    for &block in order {
        for &next in &successors[block as usize] {
            predecessors[next as usize].push(block);
        }
    }
    let mut left = LOOP_STEPS;
    let far = ("steps to find the loops of a function", LOOP_STEPS);
    let dominators = dominators(&predecessors, order, &place, &mut left).ok_or(far)?;
    let mut dominates = |above: BlockId, mut below: BlockId| {
        // Whoever dominates stands before.
        while place[below as usize] > place[above as usize] {
            left = left.checked_sub(1)?;
            below = dominators[below as usize];
        }
        Some(above == below)
    };
    let mut loops: Vec<(BlockId, BitSet)> = Vec::new();
    let mut of_header = vec![usize::MAX; count];
    for &block in order {
        for &header in &successors[block as usize] {
            if !dominates(header, block).ok_or(far)? {
                continue;
            }
            let index = &mut of_header[header as usize];
            if *index == usize::MAX {
                if (loops.len() as u64 + 1) * count as u64 > LOOP_BITS {
                    return Err(("basic blocks times loops of a function", LOOP_BITS));
                }
                let mut body = BitSet::new(count);
                body.insert(header);
                *index = loops.len();
                loops.push((header, body));
            }
            let body = &mut loops[*index].1;
            let mut stack = vec![block];
            while let Some(inside) = stack.pop() {
                if body.insert(inside) {
                    stack.extend(&predecessors[inside as usize]);
                }
            }
        }
    }
    Ok(loops)
}

/// Immediate dominators (Cooper, Harvey, Kennedy). `None` if more than `left` steps are wanted.
fn dominators(
    predecessors: &[Vec<BlockId>],
    order: &[BlockId],
    place: &[usize],
    left: &mut u64,
) -> Option<Vec<BlockId>> {
    let mut above = vec![BlockId::MAX; predecessors.len()];
    above[0] = 0;
    let mut changed = true;
    while changed {
        changed = false;
        for &block in &order[1..] {
            let mut new = BlockId::MAX;
            *left = left.checked_sub(predecessors[block as usize].len() as u64)?;
            for &before in &predecessors[block as usize] {
                if above[before as usize] == BlockId::MAX {
                    continue;
                }
                if new == BlockId::MAX {
                    new = before;
                    continue;
                }
                let (mut a, mut b) = (before, new);
                while a != b {
                    while place[a as usize] > place[b as usize] {
                        *left = left.checked_sub(1)?;
                        a = above[a as usize];
                    }
                    while place[b as usize] > place[a as usize] {
                        *left = left.checked_sub(1)?;
                        b = above[b as usize];
                    }
                }
                new = a;
            }
            if above[block as usize] != new {
                above[block as usize] = new;
                changed = true;
            }
        }
    }
    Some(above)
}
