//! Configuration: schema, file, environment overrides, ranges.

mod schema;

pub use schema::*;
