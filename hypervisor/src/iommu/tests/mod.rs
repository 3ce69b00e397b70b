mod amd_vi;
pub(crate) mod routes;
mod vtd;
