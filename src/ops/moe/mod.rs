//! Mixture of experts: which experts a token goes to, and the sum of what they give.
//!
//! A token is routed by its own logits alone ([`route`]), so that its experts never depend on who else is in the batch. What goes
//! to one expert is put together ([`Dispatch`]), so that its weights are read once for all of its tokens: the products themselves
//! are those of [`crate::ops::matmul::matmul_all`] and [`crate::ops::qmatmul::qmatmul_all`]. [`combine`] adds what the experts of
//! a token gave, in ascending order of its slots. An expert never sees a token that was not routed to it.

mod combine;
mod dispatch;
mod router;

pub use combine::{add_expert_bias, combine};
pub use dispatch::{Dispatch, Group};
pub use router::{ExpertGroups, GroupScore, RouterRule, Routing, Scoring, route};
