mod cpu;
mod lists;
mod property;
mod reference;
mod scenarios;
mod system;
