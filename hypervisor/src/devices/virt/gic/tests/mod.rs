mod cpu;
mod frames;
mod lists;
mod property;
mod reference;
mod scenarios;
mod system;
